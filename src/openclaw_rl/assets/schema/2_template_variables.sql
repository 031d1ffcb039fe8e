-- Add the chat template variables from clients, with which hinted prompts are rendered, too.
ALTER TABLE bodies ADD COLUMN template BLOB;
