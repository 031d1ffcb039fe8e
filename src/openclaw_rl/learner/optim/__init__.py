"""Optimizers and float32 master weights."""
