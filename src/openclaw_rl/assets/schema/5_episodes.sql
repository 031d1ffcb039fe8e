-- Add the episodes, and to each exchange the episode that it belongs to.
CREATE TABLE episodes (
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    group_id TEXT NOT NULL,
    split TEXT NOT NULL,
    agent TEXT NOT NULL,
    started_at FLOAT NOT NULL,
    outcome TEXT,
    reward FLOAT,
    ended_at FLOAT,
    PRIMARY KEY (id)
);
CREATE INDEX episodes_group ON episodes (group_id);
ALTER TABLE exchanges ADD COLUMN episode TEXT REFERENCES episodes (id);
CREATE INDEX exchanges_episode ON exchanges (episode) WHERE episode IS NOT NULL;
