"""Conversations as files: trajectories read, checked, imported, exported, and watched for in folders."""
