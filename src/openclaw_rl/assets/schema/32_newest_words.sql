-- The newest words of each lesson, for the list of lessons on the page.
CREATE INDEX lesson_turns_said ON lesson_turns (lesson, at);
