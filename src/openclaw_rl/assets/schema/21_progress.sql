-- Add to a heartbeat when the work last advanced and what it is, and to an attempt which process began it.
ALTER TABLE loops ADD COLUMN advanced_at FLOAT NOT NULL DEFAULT 0;
ALTER TABLE loops ADD COLUMN activity TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN pid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN excused INTEGER NOT NULL DEFAULT 0;
