"""Brings thumbs and scores that people give in other programs to the gateway (docs/guides/feedback.md)."""
