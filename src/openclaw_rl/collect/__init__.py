"""Collect stage: finds the messages that react to each turn."""
