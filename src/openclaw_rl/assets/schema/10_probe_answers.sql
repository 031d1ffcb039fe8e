-- Add the answers of the head and of a candidate to the probes of the gate.
CREATE TABLE probe_answers (
    version INTEGER NOT NULL,
    probe TEXT NOT NULL,
    head INTEGER NOT NULL,
    turn TEXT,
    question TEXT NOT NULL,
    head_answer TEXT NOT NULL,
    candidate_answer TEXT NOT NULL,
    verdict FLOAT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (version, probe),
    FOREIGN KEY(version) REFERENCES policies (version),
    FOREIGN KEY(head) REFERENCES policies (version),
    FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE
);
CREATE INDEX probe_answers_turn ON probe_answers (turn);
