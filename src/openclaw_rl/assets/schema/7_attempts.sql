-- Add what the workers are working on, so that a row on which a worker dies again and again is found.
CREATE TABLE attempts (
    stage TEXT NOT NULL,
    ref TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (stage, ref)
);
