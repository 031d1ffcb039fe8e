-- The policy that each turn trains, and how many of its uses are by versions that are not on the lineage of that policy's head.
ALTER TABLE turns ADD COLUMN owner TEXT NOT NULL DEFAULT 'default';
ALTER TABLE turns ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
CREATE TEMP TABLE owner_setting AS
SELECT trim(CAST(value AS TEXT), '"') AS per FROM meta WHERE key = 'policy_owner';
CREATE TEMP TABLE main_key AS SELECT CAST(value AS TEXT) AS id FROM meta WHERE key = 'main_key';
UPDATE turns SET owner = coalesce((
    SELECT CASE
        WHEN per = 'key' THEN 'key:' || api_key
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
WITH RECURSIVE line(owner, version) AS (
    SELECT o.owner, coalesce(
        (SELECT version FROM heads WHERE name = o.owner),
        (SELECT version FROM heads WHERE name = 'shared'),
        (SELECT version FROM heads WHERE name = 'default')
    )
    FROM (SELECT DISTINCT owner FROM turns WHERE uses > 0) AS o
    UNION ALL
    SELECT line.owner, policies.parent FROM line JOIN policies ON policies.version = line.version
    WHERE policies.parent IS NOT NULL
)
UPDATE turns SET lost = uses - (
    SELECT count(*) FROM uses JOIN line ON line.version = uses.policy
    WHERE uses.turn = turns.id AND line.owner = turns.owner
)
WHERE uses > 0;
DROP TABLE owner_setting;
DROP TABLE main_key;
DROP INDEX turns_claimable;
CREATE INDEX turns_claimable ON turns (signal, uses, owner, seq)
WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main';
CREATE INDEX turns_lost ON turns (signal, owner, seq)
WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main' AND lost > 0;
CREATE INDEX turns_owner ON turns (owner, seq) WHERE kind = 'main';
CREATE INDEX policies_name ON policies (name, version);
