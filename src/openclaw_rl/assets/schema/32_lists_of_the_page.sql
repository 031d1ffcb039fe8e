-- Indexes for the lists of lessons and of versions on the page.
CREATE INDEX lesson_turns_said ON lesson_turns (lesson, at);
CREATE INDEX exchanges_version ON exchanges (version) WHERE origin IS NULL;
