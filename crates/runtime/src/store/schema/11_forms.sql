-- The inbox holds what a tool's source wants to know of a person, too (`form`), beside calls that wait for one's word.
ALTER TABLE inbox ADD COLUMN kind TEXT NOT NULL DEFAULT 'call';
