-- Add the source of exchanges that were not served here.
ALTER TABLE exchanges ADD COLUMN origin TEXT;
