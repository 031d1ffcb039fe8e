"""Wire formats: chat completions, responses, messages."""
