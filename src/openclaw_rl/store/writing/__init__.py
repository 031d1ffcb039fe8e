"""How the writers of a store wait for one another, and the writer of many small transactions."""
