-- A job's owner is a process with a lease; only when its lease is over and it is gone may another take the job.
DROP TABLE jobs;
CREATE TABLE job_owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL, UNIQUE (pid, boot, started));
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL, session TEXT NOT NULL,
    principal TEXT NOT NULL, call TEXT NOT NULL, run TEXT, owner INTEGER, attempts INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL, ended_ms INTEGER, resumable INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0,
    plan TEXT, outcome TEXT);
-- A run that is resumed makes the same call again; it must not become a second job.
CREATE UNIQUE INDEX jobs_by_call ON jobs (run, call) WHERE run IS NOT NULL;
CREATE INDEX jobs_open ON jobs (state) WHERE ended_ms IS NULL;
CREATE INDEX jobs_by_session ON jobs (session);
CREATE INDEX jobs_by_time ON jobs (created_ms);
CREATE TABLE job_requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, request TEXT NOT NULL, asked_ms INTEGER NOT NULL,
    answer TEXT);
CREATE INDEX job_requests_open ON job_requests (job) WHERE answer IS NULL;
