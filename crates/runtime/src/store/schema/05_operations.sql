-- The account is the tree of operations: a row is an operation, its parent is another's id.
ALTER TABLE ledger ADD COLUMN op TEXT;
ALTER TABLE ledger ADD COLUMN trace TEXT;
ALTER TABLE ledger ADD COLUMN parent TEXT;
ALTER TABLE ledger ADD COLUMN run TEXT;
ALTER TABLE ledger ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN cost_usd REAL;
CREATE INDEX ledger_by_session ON ledger (session);
