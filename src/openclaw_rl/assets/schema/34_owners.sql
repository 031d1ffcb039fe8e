-- The policy that each turn trains, and how many of its uses are by versions that are not on the lineage of that policy's head.
ALTER TABLE turns ADD COLUMN owner TEXT NOT NULL DEFAULT 'default';
ALTER TABLE turns ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
CREATE TEMP TABLE owner_setting AS
SELECT trim(CAST(value AS TEXT), '"') AS per FROM meta WHERE key = 'policy_owner';
CREATE TEMP TABLE main_key AS SELECT CAST(value AS TEXT) AS id FROM meta WHERE key = 'main_key';
UPDATE turns SET owner = coalesce((
    SELECT CASE
        WHEN per = 'key' AND api_key != '' THEN 'key:' || api_key
        WHEN per = 'agent' AND agent != '' THEN 'agent:' || api_key || ':' || agent
        WHEN per = 'user' AND user != '' THEN 'user:' || api_key || ':' || user
    END
    FROM (
        SELECT e.agent, e.user, (SELECT per FROM owner_setting) AS per,
            CASE WHEN e.scope = 'import' THEN coalesce((SELECT id FROM main_key), 'import')
            ELSE coalesce((SELECT scope FROM episodes WHERE episodes.id = e.episode), e.scope) END AS api_key
        FROM exchanges AS e WHERE e.seq = turns.seq
    )
), 'default')
WHERE (SELECT per FROM owner_setting) IN ('agent', 'user', 'key');
UPDATE turns SET owner = (
    SELECT source.owner FROM practice_turns JOIN turns AS source ON source.id = practice_turns.source
    WHERE practice_turns.turn = turns.id
)
WHERE id IN (SELECT turn FROM practice_turns);
CREATE TEMP TABLE shared_line (version INTEGER PRIMARY KEY);
CREATE TEMP TABLE own_line (version INTEGER, owner TEXT, PRIMARY KEY (version, owner)) WITHOUT ROWID;
WITH RECURSIVE line(version) AS (
    SELECT version FROM heads WHERE name = 'shared'
    UNION ALL
    SELECT policies.parent FROM line JOIN policies ON policies.version = line.version
    WHERE policies.parent IS NOT NULL
)
INSERT INTO shared_line SELECT version FROM line;
WITH RECURSIVE line(version, owner) AS (
    SELECT coalesce(
        (SELECT version FROM heads WHERE name = found.owner),
        (SELECT version FROM heads WHERE name = 'shared'),
        (SELECT version FROM heads WHERE name = 'default')
    ), found.owner
    FROM (SELECT DISTINCT owner FROM turns WHERE uses > 0) AS found
    UNION ALL
    SELECT policies.parent, line.owner FROM line JOIN policies ON policies.version = line.version
    WHERE policies.parent IS NOT NULL AND line.version NOT IN (SELECT version FROM shared_line)
)
INSERT INTO own_line SELECT version, owner FROM line;
UPDATE turns SET lost = uses - (
    SELECT count(*) FROM uses
    WHERE uses.turn = turns.id AND (
        EXISTS (
            SELECT 1 FROM own_line WHERE own_line.version = uses.policy AND own_line.owner = turns.owner
        )
        OR (
            uses.policy IN (SELECT version FROM shared_line)
            AND EXISTS (
                SELECT 1 FROM own_line
                WHERE own_line.version IN (SELECT version FROM shared_line)
                AND own_line.version > uses.policy AND own_line.owner = turns.owner
            )
        )
    )
)
WHERE uses > 0;
DROP TABLE shared_line;
DROP TABLE own_line;
DROP TABLE owner_setting;
DROP TABLE main_key;
DROP INDEX turns_claimable;
CREATE INDEX turns_claimable ON turns (signal, uses, owner, seq)
WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main';
CREATE INDEX turns_lost ON turns (signal, owner, seq)
WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main' AND lost > 0;
CREATE INDEX turns_owner ON turns (owner, seq) WHERE kind = 'main';
CREATE INDEX policies_name ON policies (name, version);
