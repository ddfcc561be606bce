-- The process that waits for the answer, until it has it: one that ends without a word asks no longer.
ALTER TABLE inbox ADD COLUMN asker INTEGER;
CREATE INDEX inbox_waiting ON inbox (asker) WHERE asker IS NOT NULL;
