"""A cache with a limit."""

from lrucache.cache import Cache

__all__ = ["Cache"]
