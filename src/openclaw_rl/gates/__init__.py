"""The gate: what a step's result must pass before it becomes the head."""
