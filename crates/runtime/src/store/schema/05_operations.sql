-- The account is the tree of operations: a row is an operation, its parent another's id. What the operations of a
-- run, or of a session outside of runs, have in common is kept once, with their sums.
CREATE TABLE traces (
    id INTEGER PRIMARY KEY, run TEXT, session TEXT NOT NULL, principal TEXT NOT NULL,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, turns INTEGER NOT NULL DEFAULT 0,
    tool_calls INTEGER NOT NULL DEFAULT 0, model_calls INTEGER NOT NULL DEFAULT 0, jobs INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0, input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0, cost_usd REAL);
CREATE UNIQUE INDEX traces_by_key ON traces (session, ifnull(run, ''), principal);
CREATE INDEX traces_by_end ON traces (ended_ms);
CREATE INDEX traces_by_run ON traces (run);
CREATE TABLE operations (
    id INTEGER PRIMARY KEY, of INTEGER NOT NULL, op INTEGER NOT NULL, trace BLOB NOT NULL, parent INTEGER, turn INTEGER NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, call TEXT, status TEXT NOT NULL, at_ms INTEGER NOT NULL,
    latency_us INTEGER NOT NULL, wait_us INTEGER NOT NULL, attempts INTEGER NOT NULL, cached INTEGER NOT NULL,
    characters_in INTEGER NOT NULL, characters_out INTEGER NOT NULL, input_tokens INTEGER, output_tokens INTEGER,
    cached_tokens INTEGER, cost_usd REAL, validated INTEGER NOT NULL, decided_by TEXT NOT NULL, approval TEXT,
    provenance TEXT, tools TEXT);
CREATE INDEX operations_by_trace ON operations (of);
INSERT INTO traces (session, principal, started_ms, ended_ms, tool_calls, model_calls, failures, input_tokens,
                    output_tokens, cached_tokens)
    SELECT session, principal, MIN(at_ms - latency_ms), MAX(at_ms), SUM(kind = 'tool'),
           SUM(kind = 'model'), SUM(status <> 'ok'), SUM(input_tokens), SUM(output_tokens), SUM(cached_tokens)
    FROM ledger GROUP BY session, principal;
INSERT INTO operations (of, op, trace, turn, kind, name, call, status, at_ms, latency_us, wait_us, attempts, cached,
                        characters_in, characters_out, input_tokens, output_tokens, cached_tokens, validated,
                        decided_by, provenance, tools)
    SELECT traces.id, ledger.rowid, randomblob(16), 0, kind, name, call, status, at_ms, latency_ms * 1000, 0, 1, 0, characters_in,
           characters_out, ledger.input_tokens, ledger.output_tokens, ledger.cached_tokens, validated, decided_by,
           provenance, tools
    FROM ledger JOIN traces USING (session, principal) ORDER BY ledger.rowid;
DROP TABLE ledger;
-- When rows were last looked over for what is too old or too much: one process at a time does it.
CREATE TABLE upkeep (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
INSERT INTO upkeep VALUES (1, 0);
