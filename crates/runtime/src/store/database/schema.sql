-- The only schema of the store. Raise `VERSION` in file.rs with each change.

-- The last fetched tool list or document of each source.
CREATE TABLE manifests (key TEXT PRIMARY KEY, manifest TEXT NOT NULL, saved_ms INTEGER NOT NULL);

-- Standing approvals.
CREATE TABLE approvals (
    scope TEXT NOT NULL, tool TEXT NOT NULL, hash TEXT NOT NULL, id TEXT NOT NULL, standing TEXT NOT NULL,
    saved_ms INTEGER NOT NULL, PRIMARY KEY (scope, tool, hash));
CREATE UNIQUE INDEX approvals_by_id ON approvals (id);

-- Saved agent runs, the outcomes of their calls, and the process that drives each run (`run_claims`).
CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT NOT NULL, saved_ms INTEGER NOT NULL);
CREATE TABLE run_calls (run TEXT NOT NULL, call TEXT NOT NULL, outcome TEXT, PRIMARY KEY (run, call));
-- Objects of the model APIs, such as responses and conversations, by the id that the client knows.
CREATE TABLE objects (
    owner TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, object TEXT NOT NULL, saved_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, kind, id));
CREATE INDEX objects_by_time ON objects (saved_ms);
-- The usage of each principal's budget in each period.
CREATE TABLE budgets (
    owner TEXT NOT NULL, period TEXT NOT NULL, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, cost_usd REAL NOT NULL,
    PRIMARY KEY (owner, period));
CREATE TABLE run_claims (run TEXT PRIMARY KEY, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL);

-- The agents of a tree: a run, and the runs that its calls started. `pid`, `boot` and `started` identify the process that
-- drives the run. `tokens` and `cost_usd` are used; the `held_` columns are reserved for requests in progress.
CREATE TABLE agents (
    id TEXT PRIMARY KEY, root TEXT NOT NULL, parent TEXT, name TEXT NOT NULL, limits TEXT NOT NULL, pid INTEGER NOT NULL,
    boot TEXT NOT NULL, started INTEGER NOT NULL, begun_ms INTEGER NOT NULL, ended_ms INTEGER,
    until_ms INTEGER, tokens INTEGER NOT NULL DEFAULT 0, cost_usd REAL NOT NULL DEFAULT 0, held_tokens INTEGER NOT NULL DEFAULT 0,
    held_usd REAL NOT NULL DEFAULT 0);
CREATE INDEX agents_by_root ON agents (root);

-- The ledger: `entries` are operations, which form a tree. A row of `traces` holds what the operations of one run, or of one
-- session outside of runs, have in common, and their sums. `open_costs` counts model requests whose cost is not fully known
-- (`LedgerEntry::cost_is_open`). If a call started the run, `parent` is the caller's session, and `root` the outermost one.
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
-- Ended operations. The table is made for fast inserts, because most rows are successful tool calls: the most common value
-- of a column is stored as NULL, rare values are JSON in `more`, and columns have no types or constraints to check. `ids` is
-- the id of the trace, of the operation and, if it has one, of its parent, big-endian. `of` is the row of `traces`. Instead
-- of an index, the rows of a trace form a list: `traces.last` is its newest row, and `before` the next older one.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, of, before, ids, at_ms, kind, name, call, status, decided_by, latency_us, wait_us,
    characters_in, characters_out, validated, cost_usd, more, arguments, result);
-- Running operations, with the process that runs them. A call with possible effects is in the journal (`begun_journal.rs`) or
-- here before it is dispatched. The transaction that writes its entry deletes it. Rows of a dead process are operations with
-- an unknown outcome.
CREATE TABLE begun (op INTEGER PRIMARY KEY, owner INTEGER NOT NULL, entry TEXT NOT NULL);

-- The time of the last deletion of old and excess rows. One process at a time does this.
CREATE TABLE upkeep (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
INSERT INTO upkeep VALUES (1, 0);

-- The processes that own jobs. Another process may take a job only after the owner's lease has expired and the owner has died.
CREATE TABLE job_owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL, runs_triggers INTEGER NOT NULL DEFAULT 0, UNIQUE (pid, boot, started));
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL, session TEXT NOT NULL,
    principal TEXT NOT NULL, call TEXT NOT NULL, run TEXT, owner INTEGER, attempts INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL, ended_ms INTEGER, resumable INTEGER NOT NULL,
    plan TEXT, outcome TEXT);
-- A resumed run repeats its call, which must not create a second job.
CREATE UNIQUE INDEX jobs_by_call ON jobs (run, call) WHERE run IS NOT NULL;
CREATE INDEX jobs_open ON jobs (state) WHERE ended_ms IS NULL;
CREATE INDEX jobs_by_session ON jobs (session);
CREATE INDEX jobs_by_time ON jobs (created_ms);
CREATE TABLE job_requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, request TEXT NOT NULL, asked_ms INTEGER NOT NULL,
    answer TEXT);
CREATE INDEX job_requests_open ON job_requests (job) WHERE answer IS NULL;

-- The session log: messages and values.
-- `session`: a session, or the address of a channel.
-- `kind`: the kind of a message, or the method of a value. `name`: the subject of a message, or the path of a value.
-- `taken_by`: the reader that took the message from a queue.
-- `bytes`: the size that counts for quotas. `session_log_sizes` has the sums for each session ('s:') and principal ('p:').
-- `taint`: the untrusted tools that the value derives from. `output`: the handle of the stored output that holds the value.
-- `once`: a key that is unique within the session. `hops`: the length of the chain of messages that led to this one.
CREATE TABLE session_log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, principal TEXT NOT NULL, at_ms INTEGER NOT NULL,
    author TEXT, agent TEXT, call TEXT, is_message INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    instance TEXT, text TEXT NOT NULL DEFAULT '', data TEXT, bytes INTEGER NOT NULL, taken_by TEXT, taint TEXT, output TEXT,
    once TEXT, hops INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX session_log_once ON session_log (session, once) WHERE once IS NOT NULL;
CREATE INDEX session_log_by_session ON session_log (session, is_message, seq);
CREATE INDEX session_log_by_principal ON session_log (principal, seq);
CREATE INDEX session_log_by_time ON session_log (at_ms);
-- The last row that each reader has read. A session reads its own mailbox; sessions and triggers read channels. A session
-- works on the messages of its mailbox after `since`.
CREATE TABLE session_log_cursors (
    mailbox TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    since INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (mailbox, reader));
-- The rows of a channel that a reader's last calls have read: after `first`, up to `last`.
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
-- Full-text indexes of the session log and of saved runs. A search first indexes the runs that were saved since `runs_read`.
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
-- Members of groups. `session` names both the mailbox and the run of a member. `wires` forwards messages: whatever is written
-- to `mailbox` is also written to `reader`.
CREATE TABLE group_members (
    principal TEXT NOT NULL, name TEXT NOT NULL, agent TEXT NOT NULL, instructions TEXT, session TEXT NOT NULL,
    privileged INTEGER NOT NULL, started INTEGER NOT NULL, created_ms INTEGER NOT NULL, rights TEXT NOT NULL,
    PRIMARY KEY (principal, name));
CREATE TABLE wires (mailbox TEXT NOT NULL, reader TEXT NOT NULL, PRIMARY KEY (mailbox, reader));
-- The readers of each mailbox, and whether unread messages are kept for them (`is_waited_for`). This holds for the session of
-- the mailbox, for triggers and for wires. For another session that reads a channel, it holds until its run ends, or until it
-- has not read for a day.
CREATE VIEW session_log_readers AS
    SELECT mailbox, seq, reader = mailbox OR reader IN (SELECT id FROM triggers)
        OR (at_ms > (julianday('now') - 2440588.5) * 86400000
            AND NOT EXISTS (SELECT 1 FROM agents WHERE id = reader AND ended_ms IS NOT NULL)) AS is_waited_for
    FROM session_log_cursors
    UNION ALL SELECT mailbox, 9223372036854775807, 1 FROM wires;
-- The end of a job sends a message to its session, in the same transaction.
CREATE TRIGGER job_ends AFTER UPDATE OF ended_ms ON jobs WHEN old.ended_ms IS NULL AND new.ended_ms IS NOT NULL BEGIN
    INSERT INTO session_log (session, principal, at_ms, is_message, kind, name, bytes)
        VALUES (new.session, new.principal, new.ended_ms, 1, 'job', new.id, 0);
END;

-- Questions to a person, and their answers. A `call` waits for approval; a `form` is an elicitation of a tool's source.
-- `asker` is the process that waits for the answer; NULL after it has the answer. The question of a dead process is void.
CREATE TABLE inbox (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, request TEXT NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, state TEXT NOT NULL, decision TEXT, decided_by TEXT,
    decided_ms INTEGER, asker INTEGER);
CREATE INDEX inbox_by_time ON inbox (created_ms);
CREATE INDEX inbox_waiting ON inbox (asker) WHERE asker IS NOT NULL;

-- Triggers, with configuration, target and rights as JSON. `cursor`: the last slot of a timer or schedule, or the last message
-- of a channel, that has a firing. `watcher`: the process that watches for the trigger's events.
CREATE TABLE triggers (
    id TEXT PRIMARY KEY, config TEXT NOT NULL, target TEXT NOT NULL, rights TEXT NOT NULL, principal TEXT NOT NULL,
    root TEXT NOT NULL, creator TEXT NOT NULL, created_ms INTEGER NOT NULL, cursor INTEGER NOT NULL, watcher INTEGER,
    seen TEXT);
-- Firings of triggers. The primary key makes sure that several processes fire each slot once. `owner` is the process that
-- handles the firing, under its lease in `job_owners`. `run` is the run that the firing starts. `hops` is the length of the
-- chain of messages and file changes that led to it.
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

-- Pins: the approved definitions of a provider's tools. `scope` is the place that configures the provider. A pin holds the whole
-- approved definition, so that changes can be shown. The `next_` columns hold the definition that waits for approval and then
-- replaces it; its source may have renamed the tool (`next_tool`). `pin_decisions` counts decisions, so that other processes
-- notice a new one.
CREATE TABLE pins (
    scope TEXT NOT NULL, provider TEXT NOT NULL, tool TEXT NOT NULL, id TEXT NOT NULL,
    hash TEXT, contract TEXT, pinned_ms INTEGER, pinned_by TEXT,
    next_hash TEXT, next_contract TEXT, next_ms INTEGER, next_tool TEXT,
    PRIMARY KEY (provider, scope, tool));
CREATE TABLE pin_decisions (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
INSERT INTO pin_decisions VALUES (1, 0);
