-- Operations that have begun and not ended, with the process that has them. A row is committed before a call is dispatched
-- that may have an effect, and goes in the transaction that writes its entry: what is left of a process that is gone has an
-- unknown outcome.
CREATE TABLE begun (op INTEGER PRIMARY KEY, owner INTEGER NOT NULL, entry TEXT NOT NULL);
