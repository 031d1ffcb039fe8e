"""Room 2: which messages answer which turn."""
