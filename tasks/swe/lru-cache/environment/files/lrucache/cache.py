"""A cache that forgets what was not used for the longest time."""

from collections import OrderedDict


class Cache:
    """At most `limit` entries. Reading and writing an entry is using it; `in` is not."""

    def __init__(self, limit):
        self.limit = limit
        self._entries = OrderedDict()

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def get(self, key, default=None):
        """Return the value of an entry."""
        if key not in self._entries:
            return default
        return self._entries[key]

    def put(self, key, value):
        """Write an entry; the one that was not used for the longest time goes if there are too many."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self.limit:
            self._entries.popitem(last=False)
