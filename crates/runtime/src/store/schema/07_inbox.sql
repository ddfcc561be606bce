-- Questions to a person, and what became of them.
CREATE TABLE inbox (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, principal TEXT NOT NULL, request TEXT NOT NULL, created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, state TEXT NOT NULL, decision TEXT, decided_by TEXT, decided_ms INTEGER);
CREATE INDEX inbox_by_time ON inbox (created_ms);
-- Standing approvals can be looked at and taken back. Those before could not, and their sessions are over.
DELETE FROM approvals;
ALTER TABLE approvals ADD COLUMN id TEXT;
ALTER TABLE approvals ADD COLUMN standing TEXT;
CREATE UNIQUE INDEX approvals_by_id ON approvals (id);
