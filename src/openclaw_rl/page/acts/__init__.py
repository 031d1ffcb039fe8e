"""Acts of the page, by which the owner changes things: each says first what it does, and is the same function as the command."""
