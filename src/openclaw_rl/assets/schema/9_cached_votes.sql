-- Add the votes on questions to a judge, so that the same question is not asked again.
CREATE TABLE cached_votes (
    seq INTEGER NOT NULL,
    key BLOB NOT NULL,
    turn TEXT NOT NULL,
    votes BLOB NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (key),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE INDEX cached_votes_turn ON cached_votes (turn);
