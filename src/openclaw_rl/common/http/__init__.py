"""The package's HTTP clients, and the one rule by which their requests go to a proxy."""
