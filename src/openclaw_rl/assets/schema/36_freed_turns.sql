-- Turns that may be trained on again, because all versions that used them were rolled back or rejected.
CREATE INDEX turns_freed ON turns (signal, owner, seq)
WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main' AND lost > 0 AND uses - lost = 0;
-- Judges that are not trusted for a person.
CREATE INDEX judge_trust_refused ON judge_trust (judge) WHERE is_trusted = 0;
