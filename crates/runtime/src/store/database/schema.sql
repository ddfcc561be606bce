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
-- Objects that clients of model APIs refer to by id.
CREATE TABLE objects (
    owner TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, object TEXT NOT NULL, saved_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, kind, id));
CREATE INDEX objects_by_time ON objects (saved_ms);
-- What is spent of the budgets of principals, in a period.
CREATE TABLE budgets (
    owner TEXT NOT NULL, period TEXT NOT NULL, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, cost_usd REAL NOT NULL,
    PRIMARY KEY (owner, period));
CREATE TABLE run_claims (run TEXT PRIMARY KEY, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL);

-- Trees of agents: a run and the runs that its calls began, with the process that drives each, what it has used and what its
-- requests under way may use.
CREATE TABLE agents (
    id TEXT PRIMARY KEY, root TEXT NOT NULL, parent TEXT, name TEXT NOT NULL, limits TEXT NOT NULL, pid INTEGER NOT NULL,
    boot TEXT NOT NULL, started INTEGER NOT NULL, begun_ms INTEGER NOT NULL, ended_ms INTEGER,
    until_ms INTEGER, tokens INTEGER NOT NULL DEFAULT 0, cost_usd REAL NOT NULL DEFAULT 0, held_tokens INTEGER NOT NULL DEFAULT 0,
    held_usd REAL NOT NULL DEFAULT 0);
CREATE INDEX agents_by_root ON agents (root);

-- The ledger is the tree of operations. What the operations of a run, or of a session outside of runs, have in common is
-- kept once, with their sums. `open_costs` counts attempts at models that may have cost something beside what is known
-- (`LedgerEntry::cost_is_open`). `parent` and `root` are the sessions above the run of an agent that a call began.
CREATE TABLE traces (
    id INTEGER PRIMARY KEY, run TEXT, session TEXT NOT NULL, principal TEXT NOT NULL,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, turns INTEGER NOT NULL DEFAULT 0,
    tool_calls INTEGER NOT NULL DEFAULT 0, model_calls INTEGER NOT NULL DEFAULT 0, jobs INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0, input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    cache_written_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0, cost_usd REAL, open_costs INTEGER NOT NULL DEFAULT 0, last INTEGER,
    parent TEXT, root TEXT);
CREATE UNIQUE INDEX traces_by_key ON traces (session, ifnull(run, ''), principal);
CREATE INDEX traces_by_end ON traces (ended_ms);
CREATE INDEX traces_by_run ON traces (run);
CREATE INDEX traces_by_root ON traces (root) WHERE root IS NOT NULL;
-- Operations that have ended. Most rows are tool calls that went well, and they are cheap to write: a value that most rows
-- share is NULL, what few rows have is JSON in `more`, and no column has a type or a constraint that each row would be
-- checked for. `ids` is the trace, the operation and, where it has one, its parent's, big-endian. In place of an index
-- each row names the one `before` it that is of the same row of `traces`, and that names its `last`.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, of, before, ids, at_ms, kind, name, call, status, decided_by, latency_us, wait_us,
    characters_in, characters_out, validated, cost_usd, more, arguments, result);
-- Operations that have begun and not ended, with the process that runs them. A call that may have an effect is in the
-- journal (`begun_journal.rs`) or here before it is dispatched, and leaves in the transaction that writes its entry. The
-- rows of a dead process have an unknown outcome.
CREATE TABLE begun (op INTEGER PRIMARY KEY, owner INTEGER NOT NULL, entry TEXT NOT NULL);

-- When rows were last looked over for what is too old or too much: one process at a time does it.
CREATE TABLE upkeep (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
INSERT INTO upkeep VALUES (1, 0);

-- A job's owner is a process with a lease; only when its lease is over and it is gone may another take the job.
CREATE TABLE job_owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL, runs_triggers INTEGER NOT NULL DEFAULT 0, UNIQUE (pid, boot, started));
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL, session TEXT NOT NULL,
    principal TEXT NOT NULL, call TEXT NOT NULL, run TEXT, owner INTEGER, attempts INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL, ended_ms INTEGER, resumable INTEGER NOT NULL,
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

-- The session log. `session` is a session or the address of a channel; `kind` is a message's kind or a value's method,
-- `name` what a message is about or a value's path, `taken_by` who took a message from a queue. `bytes` is what counts for quotas, summed up in `session_log_sizes`
-- for each session ('s:') and principal ('p:'). `taint` holds the untrusted tools that a value came out of, `output` the handle of the stored output that
-- holds the value, `once` what a session has one row of, `hops` how many messages a message follows from, itself included.
CREATE TABLE session_log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, principal TEXT NOT NULL, at_ms INTEGER NOT NULL,
    author TEXT, agent TEXT, call TEXT, is_message INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    instance TEXT, text TEXT NOT NULL DEFAULT '', data TEXT, bytes INTEGER NOT NULL, taken_by TEXT, taint TEXT, output TEXT,
    once TEXT, hops INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX session_log_once ON session_log (session, once) WHERE once IS NOT NULL;
CREATE INDEX session_log_by_session ON session_log (session, is_message, seq);
CREATE INDEX session_log_by_principal ON session_log (principal, seq);
CREATE INDEX session_log_by_time ON session_log (at_ms);
-- How far readers have read: a session its own mailbox, sessions and triggers a channel. What a session works on follows from
-- the messages of its mailbox behind `since`.
CREATE TABLE session_log_cursors (
    mailbox TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    since INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (mailbox, reader));
-- What the last calls of a reader have read of a channel: behind `first`, up to `last`.
CREATE TABLE session_log_reads (
    mailbox TEXT NOT NULL, reader TEXT NOT NULL, call TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, PRIMARY KEY (mailbox, reader, call));
CREATE TABLE session_log_sizes (whose TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER session_log_grows AFTER INSERT ON session_log WHEN new.bytes > 0 BEGIN
    INSERT INTO session_log_sizes VALUES ('s:' || new.session, new.bytes), ('p:' || new.principal, new.bytes)
        ON CONFLICT (whose) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER session_log_shrinks AFTER DELETE ON session_log WHEN old.bytes > 0 BEGIN
    UPDATE session_log_sizes SET bytes = bytes - old.bytes
        WHERE whose IN ('s:' || old.session, 'p:' || old.principal);
    DELETE FROM session_log_sizes WHERE whose = 's:' || old.session AND bytes <= 0;
END;
-- Its text, and that of saved runs, which is read when somebody searches. A run is read again once it was saved anew.
CREATE VIRTUAL TABLE session_log_text USING fts5(
    name, text, data, content = 'session_log', content_rowid = 'seq', tokenize = 'porter unicode61');
CREATE TRIGGER session_log_text_grows AFTER INSERT ON session_log BEGIN
    INSERT INTO session_log_text (rowid, name, text, data) VALUES (new.seq, new.name, new.text, new.data);
END;
CREATE TRIGGER session_log_text_shrinks AFTER DELETE ON session_log BEGIN
    INSERT INTO session_log_text (session_log_text, rowid, name, text, data)
        VALUES ('delete', old.seq, old.name, old.text, old.data);
END;
CREATE TABLE run_passages (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, who TEXT NOT NULL,
    at_ms INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX run_passages_by_run ON run_passages (run);
CREATE INDEX run_passages_by_principal ON run_passages (principal, at_ms, id);
CREATE TABLE runs_read (run TEXT PRIMARY KEY, saved_ms INTEGER NOT NULL);
CREATE VIRTUAL TABLE run_text USING fts5(
    text, content = 'run_passages', content_rowid = 'id', tokenize = 'porter unicode61');
CREATE TRIGGER run_text_grows AFTER INSERT ON run_passages BEGIN
    INSERT INTO run_text (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER run_text_shrinks AFTER DELETE ON run_passages BEGIN
    INSERT INTO run_text (run_text, rowid, text) VALUES ('delete', old.id, old.text);
END;
-- Members of groups; `session` is a member's mailbox and its run. What is written to a mailbox is written to those that are
-- wired to it, too.
CREATE TABLE group_members (
    principal TEXT NOT NULL, name TEXT NOT NULL, agent TEXT NOT NULL, instructions TEXT, session TEXT NOT NULL,
    privileged INTEGER NOT NULL, started INTEGER NOT NULL, created_ms INTEGER NOT NULL, rights TEXT NOT NULL,
    PRIMARY KEY (principal, name));
CREATE TABLE wires (mailbox TEXT NOT NULL, reader TEXT NOT NULL, PRIMARY KEY (mailbox, reader));
-- How far readers are, and whether messages wait for them: for a session and its mailbox, for triggers and wires, and for
-- a session that reads a channel until its run has ended or it has not read for a day.
CREATE VIEW session_log_readers AS
    SELECT mailbox, seq, reader = mailbox OR reader IN (SELECT id FROM triggers)
        OR (at_ms > (julianday('now') - 2440588.5) * 86400000
            AND NOT EXISTS (SELECT 1 FROM agents WHERE id = reader AND ended_ms IS NOT NULL)) AS is_waited_for
    FROM session_log_cursors
    UNION ALL SELECT mailbox, 9223372036854775807, 1 FROM wires;
-- Whoever ends a job tells its session, in the same transaction.
CREATE TRIGGER job_ends AFTER UPDATE OF ended_ms ON jobs WHEN old.ended_ms IS NULL AND new.ended_ms IS NOT NULL BEGIN
    INSERT INTO session_log (session, principal, at_ms, is_message, kind, name, bytes)
        VALUES (new.session, new.principal, new.ended_ms, 1, 'job', new.id, 0);
END;

-- Questions to a person, and what became of them: calls that wait for a word (`call`), and what a tool's source wants to
-- know (`form`). `asker` is the process that waits for the answer, until it has it: one that is gone asks no longer.
CREATE TABLE inbox (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, request TEXT NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, state TEXT NOT NULL, decision TEXT, decided_by TEXT,
    decided_ms INTEGER, asker INTEGER);
CREATE INDEX inbox_by_time ON inbox (created_ms);
CREATE INDEX inbox_waiting ON inbox (asker) WHERE asker IS NOT NULL;

-- Triggers: configuration, target and rights as JSON. The slots of a timer or schedule, and the messages of a channel, are
-- entered up to `cursor`. `watcher` is the process that watches for what fires it.
CREATE TABLE triggers (
    id TEXT PRIMARY KEY, config TEXT NOT NULL, target TEXT NOT NULL, rights TEXT NOT NULL, principal TEXT NOT NULL,
    root TEXT NOT NULL, creator TEXT NOT NULL, created_ms INTEGER NOT NULL, cursor INTEGER NOT NULL, watcher INTEGER,
    seen TEXT);
-- Firings. Trigger and slot are unique, so that several processes fire each slot once; one owner at a time has it under the
-- lease of `job_owners`. `run` is the run that it starts, `hops` how many messages and changes of files led to it.
CREATE TABLE firings (
    trigger_id TEXT NOT NULL, slot TEXT NOT NULL, due_ms INTEGER NOT NULL, state TEXT NOT NULL, owner INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0, payload TEXT, error TEXT, created_ms INTEGER NOT NULL, ended_ms INTEGER,
    run TEXT, hops INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (trigger_id, slot));
CREATE INDEX firings_by_run ON firings (run) WHERE hops > 0;
CREATE INDEX firings_open ON firings (trigger_id, due_ms) WHERE ended_ms IS NULL;
CREATE INDEX firings_by_time ON firings (ended_ms);

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
