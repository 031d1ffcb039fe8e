"""A buffer that keeps the newest items."""


class RingBuffer:
    """The newest `size` items, the oldest of them first."""

    def __init__(self, size):
        if size < 1:
            raise ValueError("expected a size of at least 1")
        self._items = [None] * size
        self._start = 0
        self._count = 0

    def __len__(self):
        return self._count

    def append(self, item):
        """Add an item; if the buffer is full, the oldest one is dropped."""
        end = (self._start + self._count) % len(self._items)
        self._items[end] = item
        if self._count < len(self._items):
            self._count += 1
        else:
            self._start = (self._start + 1) % len(self._items)

    def pop(self):
        """Remove and return the oldest item."""
        if not self._count:
            raise IndexError("the buffer is empty")
        item = self._items[self._start]
        self._items[self._start] = None
        self._start = (self._start + 1) % len(self._items)
        self._count -= 1
        return item

    def __iter__(self):
        for offset in range(self._count):
            yield self._items[offset]
