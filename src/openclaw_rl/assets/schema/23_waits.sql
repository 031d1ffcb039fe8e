-- Add to a heartbeat what its worker waits for.
ALTER TABLE loops ADD COLUMN waits TEXT NOT NULL DEFAULT '[]';
