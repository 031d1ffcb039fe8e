"""Acts of the page: each says first what it does, and is the same function as the command."""
