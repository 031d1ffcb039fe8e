-- The processes that work on the home, so that none takes what another works on.
CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    pid INTEGER NOT NULL,
    expires_at FLOAT NOT NULL
);
-- Who works on a row.
ALTER TABLE attempts ADD COLUMN worker TEXT NOT NULL DEFAULT '';
