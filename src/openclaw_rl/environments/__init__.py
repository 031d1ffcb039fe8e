"""Environments: programs that work on tasks with the policy, as episodes (docs/guides/environments.md)."""
