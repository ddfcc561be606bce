-- The store's only schema. Raise `VERSION` in schema.rs with each change.

-- Lists of tools and documents of sources, as they were last fetched.
CREATE TABLE manifests (key TEXT PRIMARY KEY, manifest TEXT NOT NULL, saved_ms INTEGER NOT NULL);

-- Standing approvals.
CREATE TABLE approvals (
    scope TEXT NOT NULL, tool TEXT NOT NULL, hash TEXT NOT NULL, id TEXT NOT NULL, standing TEXT NOT NULL,
    saved_ms INTEGER NOT NULL, PRIMARY KEY (scope, tool, hash));
CREATE UNIQUE INDEX approvals_by_id ON approvals (id);

-- Runs of the agent, the process that drives each, and what their calls came to.
CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT NOT NULL, saved_ms INTEGER NOT NULL);
CREATE TABLE run_calls (run TEXT NOT NULL, call TEXT NOT NULL, outcome TEXT, PRIMARY KEY (run, call));
CREATE TABLE run_claims (run TEXT PRIMARY KEY, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL);

-- The ledger is the tree of operations. What the operations of a run, or of a session outside of runs, have in common is
-- kept once, with their sums. `open_costs` counts attempts at models that may have cost something beside what is known
-- (`LedgerEntry::cost_is_open`).
CREATE TABLE traces (
    id INTEGER PRIMARY KEY, run TEXT, session TEXT NOT NULL, principal TEXT NOT NULL,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, turns INTEGER NOT NULL DEFAULT 0,
    tool_calls INTEGER NOT NULL DEFAULT 0, model_calls INTEGER NOT NULL DEFAULT 0, jobs INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0, input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    cache_written_tokens INTEGER NOT NULL DEFAULT 0, cost_usd REAL, open_costs INTEGER NOT NULL DEFAULT 0, last INTEGER);
CREATE UNIQUE INDEX traces_by_key ON traces (session, ifnull(run, ''), principal);
CREATE INDEX traces_by_end ON traces (ended_ms);
CREATE INDEX traces_by_run ON traces (run);
-- Operations that have ended. Most rows are tool calls that went well, and they are cheap to write: a value that most rows
-- share is NULL, what few rows have is JSON in `more`, and no column has a type or a constraint that each row would be
-- checked for. `ids` is the trace, the operation and, where it has one, its parent's, big-endian. In place of an index
-- each row names the one `before` it that is of the same row of `traces`, and that names its `last`.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, of, before, ids, at_ms, kind, name, call, status, decided_by, latency_us, wait_us,
    characters_in, characters_out, validated, cost_usd, more);
-- Operations that have begun and not ended, with the process that has them. A row is committed before a call is dispatched
-- that may have an effect, and goes in the transaction that writes its entry: what is left of a process that is gone has an
-- unknown outcome.
CREATE TABLE begun (op INTEGER PRIMARY KEY, owner INTEGER NOT NULL, entry TEXT NOT NULL);

-- When rows were last looked over for what is too old or too much: one process at a time does it.
CREATE TABLE upkeep (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
INSERT INTO upkeep VALUES (1, 0);

-- A job's owner is a process with a lease; only when its lease is over and it is gone may another take the job.
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

-- Questions to a person, and what became of them: calls that wait for a word (`call`), and what a tool's source wants to
-- know (`form`). `asker` is the process that waits for the answer, until it has it: one that is gone asks no longer.
CREATE TABLE inbox (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, request TEXT NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, state TEXT NOT NULL, decision TEXT, decided_by TEXT,
    decided_ms INTEGER, asker INTEGER);
CREATE INDEX inbox_by_time ON inbox (created_ms);
CREATE INDEX inbox_waiting ON inbox (asker) WHERE asker IS NOT NULL;

-- The response cache.
CREATE TABLE responses (
    key TEXT PRIMARY KEY, output TEXT NOT NULL, bytes INTEGER NOT NULL, saved_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL);
CREATE INDEX responses_by_age ON responses (saved_ms, bytes);
CREATE INDEX responses_by_expiry ON responses (expires_ms);

-- Pins of a source: a provider by its name, as one place defines it, its scope. A pin has the definitions themselves, so that
-- what changed can be shown, and what waits for approval. What waits may have another name at its source (`next_tool`): it
-- takes the pinned one's place when it is approved. The number of decisions tells other processes that there was one.
CREATE TABLE pins (
    scope TEXT NOT NULL, provider TEXT NOT NULL, tool TEXT NOT NULL, id TEXT NOT NULL,
    hash TEXT, contract TEXT, pinned_ms INTEGER, pinned_by TEXT,
    next_hash TEXT, next_contract TEXT, next_ms INTEGER, next_tool TEXT,
    PRIMARY KEY (provider, scope, tool));
CREATE TABLE pin_decisions (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
INSERT INTO pin_decisions VALUES (1, 0);
