-- A pin is of a source: a provider by its name, as one place defines it, its scope. What was pinned by name alone has none
-- (''), and stays: each source of the name gets a copy of it with its first note or decision, and is among `pin_sources` from
-- then on. The table has a new name, so that a program of before, which would take one source's pins for another's, finds none
-- and withholds.
CREATE TABLE source_pins (
    scope TEXT NOT NULL, provider TEXT NOT NULL, tool TEXT NOT NULL, id TEXT NOT NULL,
    hash TEXT, contract TEXT, pinned_ms INTEGER, pinned_by TEXT,
    next_hash TEXT, next_contract TEXT, next_ms INTEGER,
    PRIMARY KEY (provider, scope, tool));
INSERT INTO source_pins SELECT '', provider, tool, id, hash, contract, pinned_ms, pinned_by, next_hash, next_contract, next_ms
    FROM pins;
DROP TABLE pins;
CREATE TABLE pin_sources (provider TEXT NOT NULL, scope TEXT NOT NULL, PRIMARY KEY (provider, scope));
