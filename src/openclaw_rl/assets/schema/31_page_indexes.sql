-- Queries of the page: the turns of a day, those that a version answered, and those that were not trained on.
CREATE INDEX exchanges_admitted ON exchanges (admitted_at);
CREATE INDEX exchanges_version ON exchanges (version);
CREATE INDEX turns_cause ON turns (cause) WHERE kind = 'main' AND cause IS NOT NULL;
CREATE INDEX turns_untrainable ON turns (untrainable_code) WHERE kind = 'main' AND untrainable_code IS NOT NULL;
