"""Working days."""

from workdays.calendar import Calendar

__all__ = ["Calendar"]
