"""The store: the only thing that the rooms share. SQLite in WAL, one file."""
