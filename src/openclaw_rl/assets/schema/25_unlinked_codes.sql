-- Add the code of why a turn is not linked. `migrated_reasons.py` fills it for the rows of earlier versions.
ALTER TABLE turns ADD COLUMN unlinked_code TEXT;
