"""Retries of requests to other servers. Standard library only: adapters run it in other environments."""
