-- Add the id of the exchange that a client continues.
ALTER TABLE exchanges ADD COLUMN previous TEXT;
