"""Policy versions: their lineage, the turns that each is trained on, and their statistics."""
