"""Rollouts of the owner's code, as clients of the running gateway: captured, judged and trained as any conversation."""
