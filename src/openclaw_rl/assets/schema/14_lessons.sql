-- Add the lessons: what people said about replies in words, with the turns that gave them.
CREATE TABLE lessons (
    id TEXT NOT NULL,
    policy TEXT NOT NULL,
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    topic TEXT NOT NULL,
    scope_kind TEXT NOT NULL,
    scope_value TEXT NOT NULL,
    weight FLOAT NOT NULL,
    state TEXT NOT NULL,
    superseded_by TEXT,
    is_pinned INTEGER NOT NULL,
    made_at FLOAT NOT NULL,
    reinforced_at FLOAT NOT NULL,
    learned_version INTEGER,
    divergence FLOAT,
    PRIMARY KEY (id),
    FOREIGN KEY(superseded_by) REFERENCES lessons (id) ON DELETE SET NULL,
    FOREIGN KEY(learned_version) REFERENCES policies (version)
);
CREATE INDEX lessons_scope ON lessons (policy, key, scope_kind, scope_value);
CREATE TABLE lesson_turns (
    lesson TEXT NOT NULL,
    turn TEXT NOT NULL,
    weight FLOAT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (lesson, turn),
    FOREIGN KEY(lesson) REFERENCES lessons (id) ON DELETE CASCADE,
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE INDEX lesson_turns_turn ON lesson_turns (turn);
CREATE TABLE lesson_divergences (
    lesson TEXT NOT NULL,
    version INTEGER NOT NULL,
    value FLOAT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (lesson, version),
    FOREIGN KEY(lesson) REFERENCES lessons (id) ON DELETE CASCADE,
    FOREIGN KEY(version) REFERENCES policies (version)
);
ALTER TABLE bodies ADD COLUMN lessons BLOB;
