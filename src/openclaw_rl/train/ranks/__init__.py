"""Processes of a distributed trainer: launchers, the rank program, and their RPC."""
