"""Command line interface `openclaw-rl`."""
