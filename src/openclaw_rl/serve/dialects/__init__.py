"""Wire formats: Chat Completions, Responses, Messages."""
