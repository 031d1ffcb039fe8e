"""Stage 4, train: turns judged turns into policy versions."""
