"""What scripts import from here."""

from openclaw_rl import SessionAwareProcessor, inspect_sessions

__all__ = ["SessionAwareProcessor", "inspect_sessions"]
