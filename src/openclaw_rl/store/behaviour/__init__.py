"""Queries for what people do with replies beside answering them."""
