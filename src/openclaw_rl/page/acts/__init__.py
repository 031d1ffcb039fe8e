"""Acts of the page, by which the owner changes things. Each says first what it does."""
