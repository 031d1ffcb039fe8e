"""Stage 2, collect: finds the messages that react to each turn."""
