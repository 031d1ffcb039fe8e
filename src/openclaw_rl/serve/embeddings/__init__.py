"""Embeddings of texts by the base model (`serve.embeddings`)."""
