-- What waits may have another name at its source than what is pinned: it takes that one's place when it is approved.
ALTER TABLE source_pins ADD COLUMN next_tool TEXT;
