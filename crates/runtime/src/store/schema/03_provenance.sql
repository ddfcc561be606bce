ALTER TABLE ledger ADD COLUMN provenance TEXT;
