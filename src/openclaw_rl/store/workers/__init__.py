"""The workers of a home, and what each of them has claimed."""
