"""The serve stage: the OpenAI- and Anthropic-compatible gateway."""
