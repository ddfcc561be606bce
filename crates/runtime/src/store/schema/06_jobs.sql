-- A job's owner is a process; only when its lease is over and it is gone may another take the job.
ALTER TABLE jobs ADD COLUMN principal TEXT NOT NULL DEFAULT 'owner';
ALTER TABLE jobs ADD COLUMN call TEXT;
ALTER TABLE jobs ADD COLUMN pid INTEGER;
ALTER TABLE jobs ADD COLUMN boot TEXT;
ALTER TABLE jobs ADD COLUMN started INTEGER;
ALTER TABLE jobs ADD COLUMN lease_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN ended_ms INTEGER;
ALTER TABLE jobs ADD COLUMN plan TEXT;
CREATE TABLE job_requests (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, what TEXT NOT NULL, input TEXT, asked_ms INTEGER NOT NULL, answer TEXT);
CREATE INDEX job_requests_by_job ON job_requests (job);
