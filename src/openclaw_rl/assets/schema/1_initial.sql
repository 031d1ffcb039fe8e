-- Create all tables.
CREATE TABLE cursors (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE events (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    ref TEXT NOT NULL,
    data BLOB NOT NULL,
    at FLOAT NOT NULL
);
CREATE TABLE exchanges (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    scope TEXT NOT NULL,
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    session TEXT,
    kind TEXT,
    session_done INTEGER NOT NULL,
    dialect TEXT NOT NULL,
    capture TEXT NOT NULL,
    status TEXT NOT NULL,
    version INTEGER NOT NULL,
    identity TEXT NOT NULL,
    admitted_at FLOAT NOT NULL,
    finished_at FLOAT,
    finish_reason TEXT,
    context_chain BLOB,
    reply_own BLOB,
    reply_chain BLOB,
    PRIMARY KEY (seq),
    UNIQUE (id)
);
CREATE INDEX exchanges_context ON exchanges (scope, context_chain);
CREATE INDEX exchanges_reply_chain ON exchanges (scope, reply_chain);
CREATE INDEX exchanges_reply_own ON exchanges (scope, reply_own);
CREATE INDEX exchanges_running ON exchanges (seq) WHERE status = 'running';
CREATE TABLE leases (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    expires_at FLOAT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE loops (
    name TEXT NOT NULL,
    pid INTEGER NOT NULL,
    at FLOAT NOT NULL,
    state TEXT NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE meta (
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (key)
);
CREATE TABLE policies (
    version INTEGER NOT NULL,
    parent INTEGER,
    state TEXT NOT NULL,
    path TEXT,
    digest TEXT NOT NULL,
    base TEXT NOT NULL,
    identity TEXT NOT NULL,
    memory BLOB NOT NULL,
    metrics BLOB NOT NULL,
    reason TEXT,
    created_at FLOAT NOT NULL,
    PRIMARY KEY (version),
    FOREIGN KEY(parent) REFERENCES policies (version)
);
CREATE TABLE bodies (
    seq INTEGER NOT NULL,
    messages BLOB,
    tools BLOB,
    marks BLOB NOT NULL,
    sampling BLOB NOT NULL,
    prompt_ids BLOB,
    PRIMARY KEY (seq),
    FOREIGN KEY(seq) REFERENCES exchanges (seq) ON DELETE CASCADE
);
CREATE TABLE feedback (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    scope TEXT NOT NULL,
    target TEXT NOT NULL,
    score INTEGER,
    comment TEXT,
    correction TEXT,
    given_at FLOAT NOT NULL,
    revision INTEGER,
    PRIMARY KEY (seq),
    UNIQUE (id),
    FOREIGN KEY(target) REFERENCES exchanges (id) ON DELETE CASCADE
);
CREATE INDEX feedback_target ON feedback (target);
CREATE TABLE heads (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (name),
    FOREIGN KEY(version) REFERENCES policies (version)
);
CREATE TABLE replies (
    seq INTEGER NOT NULL,
    message BLOB,
    response_ids BLOB,
    logprobs BLOB,
    mask BLOB,
    spans BLOB NOT NULL,
    mark BLOB,
    error TEXT,
    first_token_at FLOAT,
    PRIMARY KEY (seq),
    FOREIGN KEY(seq) REFERENCES exchanges (seq) ON DELETE CASCADE
);
CREATE TABLE turns (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    scope TEXT NOT NULL,
    session TEXT NOT NULL,
    parent TEXT,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    reason TEXT,
    untrainable TEXT,
    relation TEXT NOT NULL,
    relation_of TEXT,
    unlinked TEXT,
    revision INTEGER NOT NULL,
    signal INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    PRIMARY KEY (seq),
    FOREIGN KEY(seq) REFERENCES exchanges (seq) ON DELETE CASCADE,
    UNIQUE (id)
);
CREATE INDEX turns_claimable ON turns (uses, signal, seq)
    WHERE state = 'judged' AND untrainable IS NULL AND kind = 'main';
CREATE INDEX turns_closed ON turns (seq) WHERE state = 'closed';
CREATE INDEX turns_served ON turns (seq) WHERE state = 'served';
CREATE INDEX turns_session ON turns (scope, session);
CREATE TABLE reactions (
    turn TEXT NOT NULL,
    revision INTEGER NOT NULL,
    messages BLOB NOT NULL,
    signature BLOB,
    source TEXT,
    how TEXT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (turn, revision),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE TABLE uses (
    policy INTEGER NOT NULL,
    turn TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (policy, turn),
    UNIQUE (turn, number),
    FOREIGN KEY(policy) REFERENCES policies (version),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE TABLE verdicts (
    turn TEXT NOT NULL,
    revision INTEGER NOT NULL,
    judge TEXT NOT NULL,
    score INTEGER,
    votes BLOB NOT NULL,
    hints BLOB NOT NULL,
    explicit INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (turn, revision, judge),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
