-- Add the order of the turns of a batch, the credit of their tokens, and the batches that an undo trains on again.
ALTER TABLE uses ADD COLUMN place INTEGER;
ALTER TABLE uses ADD COLUMN credit BLOB;
UPDATE uses SET place = rowid;
CREATE TABLE retraining (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    repeats INTEGER NOT NULL,
    turns BLOB NOT NULL,
    FOREIGN KEY(repeats) REFERENCES policies (version)
);
