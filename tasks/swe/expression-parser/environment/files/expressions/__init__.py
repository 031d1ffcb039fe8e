"""Arithmetic."""

from expressions.evaluate import evaluate

__all__ = ["evaluate"]
