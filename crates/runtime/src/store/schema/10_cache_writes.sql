-- Prompt tokens that a provider wrote to its cache are billed at a price of their own.
ALTER TABLE operations ADD COLUMN cache_written_tokens INTEGER;
ALTER TABLE traces ADD COLUMN cache_written_tokens INTEGER NOT NULL DEFAULT 0;
