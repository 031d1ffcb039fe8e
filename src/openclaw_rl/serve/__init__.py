"""Stage 1, serve: the OpenAI-compatible gateway."""
