"""Images in messages: their digests, and what an engine that reads images gets."""
