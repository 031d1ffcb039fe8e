"""Forward passes over packed trees of turns: attention, LM head, log-probabilities."""
