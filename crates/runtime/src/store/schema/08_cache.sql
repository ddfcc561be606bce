CREATE TABLE responses (
    key TEXT PRIMARY KEY, tool TEXT NOT NULL, output TEXT NOT NULL, saved_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL);
CREATE INDEX responses_by_time ON responses (saved_ms);
