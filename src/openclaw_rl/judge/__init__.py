"""Stage 3, judge: score each closed turn."""
