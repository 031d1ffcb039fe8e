"""Command line interface of `openclaw-rl`."""
