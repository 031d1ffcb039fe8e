-- Verdicts without an opinion, for the page: reactions that a judge did not understand, newest first.
CREATE INDEX verdicts_not_understood ON verdicts (at, turn)
WHERE score IS NULL AND explicit = 0 AND hints = x'5b5d' AND coalesce(reason_code, '') != 'no evidence';
-- What an act changed, as JSON.
CREATE TABLE act_details (
    act TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (act),
    FOREIGN KEY(act) REFERENCES acts (id) ON DELETE CASCADE
);
