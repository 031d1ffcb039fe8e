-- Links to the page that were not used yet. Only their digests are kept.
CREATE TABLE page_tickets (
    digest BLOB NOT NULL,
    expires_at FLOAT NOT NULL,
    PRIMARY KEY (digest)
);
-- Browsers that are signed in, by the digests of their cookies.
CREATE TABLE page_sessions (
    digest BLOB NOT NULL,
    created_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL,
    PRIMARY KEY (digest)
);
-- What the owner changed, by a command or on the page.
CREATE TABLE acts (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    actor TEXT NOT NULL,
    outcome TEXT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (id)
);
