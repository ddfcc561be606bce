CREATE TABLE jobs (
    id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL,
    outcome TEXT, created_ms INTEGER NOT NULL, session TEXT NOT NULL);
CREATE TABLE ledger (
    at_ms INTEGER NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, kind TEXT NOT NULL, call TEXT,
    name TEXT NOT NULL, status TEXT NOT NULL, latency_ms INTEGER NOT NULL, characters_in INTEGER NOT NULL,
    characters_out INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, validated INTEGER NOT NULL, decided_by TEXT NOT NULL);
CREATE INDEX ledger_by_time ON ledger (at_ms);
CREATE TABLE pins (provider TEXT, tool TEXT, hash TEXT NOT NULL, PRIMARY KEY (provider, tool));
CREATE TABLE manifests (key TEXT PRIMARY KEY, manifest TEXT NOT NULL);
CREATE TABLE approvals (scope TEXT, tool TEXT, hash TEXT, PRIMARY KEY (scope, tool, hash));
CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE run_calls (run TEXT, call TEXT, outcome TEXT, PRIMARY KEY (run, call));
