"""Routes for browsers: the page, which another process makes, and what the gateway says at its root."""
