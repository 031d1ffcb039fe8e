-- What the person said, on which a lesson stands, and whether the lesson may reach others. Earlier lessons did.
ALTER TABLE lesson_turns ADD COLUMN words TEXT NOT NULL DEFAULT '';
ALTER TABLE lessons ADD COLUMN is_shared INTEGER NOT NULL DEFAULT 1;
