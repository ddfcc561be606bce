-- A pin has the definitions themselves, so that what changed can be shown, and what waits for approval. The number of
-- decisions tells other processes that there was one.
DROP TABLE pins;
CREATE TABLE pins (
    provider TEXT NOT NULL, tool TEXT NOT NULL, id TEXT NOT NULL,
    hash TEXT, contract TEXT, pinned_ms INTEGER, pinned_by TEXT,
    next_hash TEXT, next_contract TEXT, next_ms INTEGER,
    PRIMARY KEY (provider, tool));
CREATE TABLE pin_decisions (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
INSERT INTO pin_decisions VALUES (1, 0);
