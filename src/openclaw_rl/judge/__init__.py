"""Stage 3, judge: scores each closed turn."""
