"""The workers of a home and their claims."""
