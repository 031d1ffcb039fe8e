-- A policy of an agent or a user belongs to an API key, too: that of most of its exchanges. `versions`: of a ticket.
ALTER TABLE episodes ADD COLUMN versions BLOB;
CREATE TEMP TABLE renamed_policies AS
SELECT n.name AS name,
       substr(n.name, 1, instr(n.name, ':'))
       || coalesce((
            SELECT coalesce(e.scope, x.scope)
            FROM exchanges AS x LEFT JOIN episodes AS e ON e.id = x.episode
            WHERE substr(n.name, instr(n.name, ':') + 1) = CASE WHEN n.name GLOB 'agent:*' THEN x.agent ELSE x.user END
            GROUP BY coalesce(e.scope, x.scope) ORDER BY count(*) DESC LIMIT 1), '')
       || ':' || substr(n.name, instr(n.name, ':') + 1) AS renamed
FROM (SELECT name FROM policies UNION SELECT name FROM heads UNION SELECT policy FROM lessons) AS n
WHERE n.name GLOB 'agent:*' OR n.name GLOB 'user:*';
UPDATE policies SET name = (SELECT renamed FROM renamed_policies AS r WHERE r.name = policies.name)
WHERE name IN (SELECT name FROM renamed_policies);
UPDATE heads SET name = (SELECT renamed FROM renamed_policies AS r WHERE r.name = heads.name)
WHERE name IN (SELECT name FROM renamed_policies);
UPDATE retraining SET name = (SELECT renamed FROM renamed_policies AS r WHERE r.name = retraining.name)
WHERE name IN (SELECT name FROM renamed_policies);
UPDATE lessons SET policy = (SELECT renamed FROM renamed_policies AS r WHERE r.name = lessons.policy)
WHERE policy IN (SELECT name FROM renamed_policies);
UPDATE meta
SET key = substr(key, 1, instr(key, ':'))
    || (SELECT renamed FROM renamed_policies AS r WHERE r.name = substr(meta.key, instr(meta.key, ':') + 1))
WHERE substr(key, instr(key, ':') + 1) IN (SELECT name FROM renamed_policies);
DROP TABLE renamed_policies;
