"""Simulated users, tasks and scores that measure what a policy learned."""
