-- The processes that work on the home, so that several of a stage share its work.
CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    stage TEXT NOT NULL,
    name TEXT NOT NULL,
    boot TEXT NOT NULL,
    pid_space INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    started_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL
);
-- Who works on a row.
ALTER TABLE attempts ADD COLUMN worker TEXT NOT NULL DEFAULT '';
