"""Examination of answers as people get them: questions with known answers, with lessons in the prompt and without."""
