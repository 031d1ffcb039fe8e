"""Lessons in prompts."""
