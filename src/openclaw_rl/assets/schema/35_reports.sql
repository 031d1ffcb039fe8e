-- Counts and lists of status, policies list and inspect sessions.
CREATE INDEX turns_by_session ON turns (session);
CREATE INDEX turns_by_state ON turns (state) WHERE kind != 'practice';
CREATE INDEX turns_dropped ON turns (cause, reason) WHERE state = 'dropped' AND kind != 'practice';
CREATE INDEX turns_unfit ON turns (untrainable_code, untrainable) WHERE untrainable IS NOT NULL AND kind != 'practice';
CREATE INDEX turns_unlinked ON turns (unlinked_code, unlinked) WHERE unlinked IS NOT NULL AND kind != 'practice';
CREATE INDEX verdicts_judge ON verdicts (judge, score);
CREATE INDEX policies_state ON policies (state);
CREATE INDEX policies_parent ON policies (parent);
-- Versions whose files were not removed: 7b7d is {}, and 223a22 is between a file's name and its digest.
CREATE INDEX policies_present ON policies (path) WHERE files IS NULL OR files = x'7b7d' OR instr(files, x'223a22') > 0;
