"""The embedded engine: transformers in a process of its own. Only its server side imports torch."""
