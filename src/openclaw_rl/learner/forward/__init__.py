"""Forward computation on packed prefix trees of turns: attention, LM head, log-probabilities."""
