"""Boxes in which the commands of a model run: bubblewrap on Linux, containers by choice (docs/concepts/sandbox.md)."""
