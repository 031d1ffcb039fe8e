-- Add the lessons that one for a conversation or a subject contradicts without the words of a rule.
CREATE TABLE lesson_conflicts (
    lesson TEXT NOT NULL REFERENCES lessons (id) ON DELETE CASCADE,
    other TEXT NOT NULL REFERENCES lessons (id) ON DELETE CASCADE,
    PRIMARY KEY (lesson, other)
);
CREATE INDEX lesson_conflicts_other ON lesson_conflicts (other);
