"""The lessons: what people said about replies in words."""
