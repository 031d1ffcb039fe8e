"""Events within a program."""

from eventbus.bus import Bus

__all__ = ["Bus"]
