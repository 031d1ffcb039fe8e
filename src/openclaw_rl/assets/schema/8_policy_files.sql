-- Add the digests of all files of a policy folder, and how the files differ from them.
ALTER TABLE policies ADD COLUMN files BLOB;
ALTER TABLE policies ADD COLUMN damage TEXT;
CREATE INDEX policies_damaged ON policies (version) WHERE damage IS NOT NULL;
