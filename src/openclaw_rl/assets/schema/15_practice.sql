-- Add what practice turns were made from: the turn whose prompt was asked again, and the lessons.
CREATE TABLE practice_turns (
    turn TEXT NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (turn),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE,
    FOREIGN KEY(source) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE INDEX practice_turns_source ON practice_turns (source);
CREATE TABLE practice_lessons (
    turn TEXT NOT NULL,
    lesson TEXT NOT NULL,
    PRIMARY KEY (turn, lesson),
    FOREIGN KEY(turn) REFERENCES practice_turns (turn) ON DELETE CASCADE
);
CREATE INDEX practice_lessons_lesson ON practice_lessons (lesson);
CREATE INDEX turns_practice ON turns (seq) WHERE kind = 'practice';
