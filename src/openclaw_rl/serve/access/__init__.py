"""How requests reach the gateway: the paths that clients ask for, and the keys that they send."""
