CREATE TABLE responses (
    key TEXT PRIMARY KEY, output TEXT NOT NULL, bytes INTEGER NOT NULL, saved_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL);
CREATE INDEX responses_by_age ON responses (saved_ms, bytes);
CREATE INDEX responses_by_expiry ON responses (expires_ms);
