-- Trust in a judge is a person's own, and evidence of a person may be set aside in what is common to all.
CREATE TABLE judge_trust (
    scope TEXT NOT NULL,
    "user" TEXT NOT NULL,
    judge TEXT NOT NULL,
    is_trusted INTEGER NOT NULL,
    kappa FLOAT NOT NULL,
    pairs INTEGER NOT NULL,
    PRIMARY KEY (scope, "user", judge)
);
CREATE TABLE evidence_set_aside (
    scope TEXT NOT NULL,
    "user" TEXT NOT NULL,
    code TEXT NOT NULL,
    part INTEGER NOT NULL,
    whole INTEGER NOT NULL,
    detail TEXT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (scope, "user", code)
);
