-- Feedback by what its client knows: its own id of a reply, who gave the feedback, a key that brings it once, and when
-- it was taken back.
ALTER TABLE exchanges ADD COLUMN client_message_id TEXT;
CREATE INDEX exchanges_client_message ON exchanges (scope, client_message_id) WHERE client_message_id IS NOT NULL;
ALTER TABLE feedback ADD COLUMN given_by TEXT;
ALTER TABLE feedback ADD COLUMN idempotency_key TEXT;
ALTER TABLE feedback ADD COLUMN body_digest BLOB;
ALTER TABLE feedback ADD COLUMN retracted_at FLOAT;
CREATE UNIQUE INDEX feedback_key ON feedback (scope, idempotency_key);
