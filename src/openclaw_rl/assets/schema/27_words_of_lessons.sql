-- What the person said, on which a lesson stands.
ALTER TABLE lesson_turns ADD COLUMN words TEXT NOT NULL DEFAULT '';
