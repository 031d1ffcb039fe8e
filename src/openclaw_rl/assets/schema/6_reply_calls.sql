-- Add the tool call ids of replies, by which later requests are linked.
CREATE TABLE reply_calls (
    seq INTEGER NOT NULL,
    call TEXT NOT NULL,
    scope TEXT NOT NULL,
    PRIMARY KEY (seq, call),
    FOREIGN KEY(seq) REFERENCES exchanges (seq) ON DELETE CASCADE
);
CREATE INDEX reply_calls_call ON reply_calls (scope, call);
INSERT OR IGNORE INTO reply_calls (seq, call, scope)
SELECT exchanges.seq, json_extract(made.value, '$.id'), exchanges.scope
FROM exchanges
JOIN replies ON replies.seq = exchanges.seq,
json_each(CAST(replies.message AS TEXT), '$.tool_calls') AS made
WHERE replies.message IS NOT NULL AND json_type(made.value, '$.id') = 'text';
