-- Find degenerate replies without reading all turns.
CREATE INDEX turns_degenerate ON turns (seq) WHERE cause = 'degenerate';
