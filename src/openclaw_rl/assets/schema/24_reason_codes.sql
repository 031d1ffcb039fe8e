-- Add the codes of reasons beside their words. `migrated_reasons.py` fills them for the rows of earlier versions.
ALTER TABLE turns ADD COLUMN untrainable_code TEXT;
ALTER TABLE policies ADD COLUMN reason_code TEXT;
ALTER TABLE verdicts ADD COLUMN reason_code TEXT;
