"""Explicit feedback on replies: its rows, and the search for the reply that a client means."""
