-- Add the name of the policy that a version belongs to: there may be one for each agent, user or key.
ALTER TABLE policies ADD COLUMN name TEXT NOT NULL DEFAULT 'default';
ALTER TABLE retraining ADD COLUMN name TEXT NOT NULL DEFAULT 'default';
