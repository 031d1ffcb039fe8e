"""Episodes of environments, their groups and steps (docs/concepts/episodes.md)."""
