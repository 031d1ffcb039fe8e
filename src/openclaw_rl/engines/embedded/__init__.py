"""The embedded engine: transformers in a separate process. Only the server side imports torch."""
