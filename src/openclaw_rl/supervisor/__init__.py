"""Supervisor: starts the workers, restarts them, and stops them together."""
