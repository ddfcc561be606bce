-- The account from here on. Most of its rows are calls of tools that went well, and they are written for little: what is
-- as in most is NULL, what few have is JSON in `more`, and no column has a type or a constraint that each row would be
-- checked for. `ids` is the trace, the operation and, where it has one, its parent's, big-endian. In place of an index
-- each row names the one `before` it that is of the same row of `traces`, and that names its `last`. `operations` stays
-- as it is: programs of before write to it, and what it holds goes when it is old.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, of, before, ids, at_ms, kind, name, call, status, decided_by, latency_us, wait_us,
    characters_in, characters_out, validated, cost_usd, more);
ALTER TABLE traces ADD COLUMN last INTEGER;
