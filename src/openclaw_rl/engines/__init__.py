"""Engines: token ids in, token ids out. Nothing here imports torch but the files `embedded*.py`."""
