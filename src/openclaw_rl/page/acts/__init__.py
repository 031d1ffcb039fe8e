"""What can be changed on the page: each act says first what it does, and is the same function as the command."""
