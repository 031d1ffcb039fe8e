-- Add what people did with replies, and the weight of a verdict.
CREATE TABLE observations (
    turn TEXT NOT NULL,
    signal TEXT NOT NULL,
    source TEXT,
    at FLOAT NOT NULL,
    PRIMARY KEY (turn, signal),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
ALTER TABLE verdicts ADD COLUMN weight FLOAT NOT NULL DEFAULT 1;
