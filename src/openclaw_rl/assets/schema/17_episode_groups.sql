-- Add what the gateway needs to open and to end episodes, the groups of episodes, and the steps of ended ones.
ALTER TABLE episodes ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE episodes ADD COLUMN expires_at FLOAT NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN max_steps INTEGER;
ALTER TABLE episodes ADD COLUMN sampling BLOB;
ALTER TABLE episodes ADD COLUMN parts BLOB;
ALTER TABLE episodes ADD COLUMN steps BLOB;
ALTER TABLE episodes ADD COLUMN reason TEXT;
ALTER TABLE episodes ADD COLUMN settled_at FLOAT;
CREATE INDEX episodes_running ON episodes (expires_at) WHERE outcome IS NULL;
CREATE TABLE episode_groups (
    id TEXT NOT NULL,
    scope TEXT NOT NULL,
    task TEXT NOT NULL,
    split TEXT NOT NULL,
    agent TEXT NOT NULL,
    size INTEGER NOT NULL,
    expires_at FLOAT NOT NULL,
    completed_at FLOAT,
    reason TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX episode_groups_open ON episode_groups (expires_at) WHERE completed_at IS NULL;
CREATE TABLE episode_steps (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    episode TEXT NOT NULL REFERENCES episodes (id),
    step INTEGER NOT NULL,
    reward FLOAT,
    PRIMARY KEY (turn)
);
CREATE INDEX episode_steps_episode ON episode_steps (episode);
