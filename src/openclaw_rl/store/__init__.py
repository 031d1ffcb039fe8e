"""The store: the only state that the stages share. SQLite in WAL mode, one file."""
