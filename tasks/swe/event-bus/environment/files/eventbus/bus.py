"""Calls handlers when something happens."""


class Bus:
    """Handlers by the name of an event, called in the order in which they were added."""

    def __init__(self):
        self._handlers = {}

    def on(self, event, handler):
        """Add a handler; return a function that removes it."""
        self._handlers.setdefault(event, []).append(handler)
        return lambda: self.off(event, handler)

    def once(self, event, handler):
        """Add a handler that is called for one event only."""

        def call(*args):
            remove()
            handler(*args)

        remove = self.on(event, call)
        return remove

    def off(self, event, handler):
        """Remove a handler; nothing happens if it is not there."""
        handlers = self._handlers.get(event, [])
        if handler in handlers:
            handlers.remove(handler)

    def emit(self, event, *args):
        """Call all handlers that the event has now; return how many."""
        handlers = self._handlers.get(event, [])
        for handler in handlers:
            handler(*args)
        return len(handlers)
