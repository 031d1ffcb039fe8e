-- Add what the examinations of lessons found: whether answers stay right with the lessons in the prompt.
ALTER TABLE lessons ADD COLUMN withdrawal BLOB;
CREATE TABLE examined_lessons (
    digest BLOB NOT NULL,
    version INTEGER NOT NULL,
    asked INTEGER NOT NULL,
    right_with INTEGER NOT NULL,
    right_without INTEGER NOT NULL,
    is_sound INTEGER NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (digest, version),
    FOREIGN KEY(version) REFERENCES policies (version)
);
CREATE TABLE waiting_examinations (
    digest BLOB NOT NULL,
    texts BLOB NOT NULL,
    PRIMARY KEY (digest)
);
CREATE TABLE base_answers (
    identity TEXT NOT NULL,
    answers BLOB NOT NULL,
    capacity INTEGER,
    PRIMARY KEY (identity)
);
