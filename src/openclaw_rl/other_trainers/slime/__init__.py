"""Adapter for slime (docs/guides/slime.md): modules that slime loads by their path. They run in its environment."""
