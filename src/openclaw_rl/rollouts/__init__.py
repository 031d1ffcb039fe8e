"""Rollouts: programs of the owner that are clients of the gateway; captured, judged and trained as conversations."""
