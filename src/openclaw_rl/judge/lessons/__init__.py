"""Lessons: what the hints of verdicts say, merged, weighed, and scoped."""
