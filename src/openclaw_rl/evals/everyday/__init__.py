"""A simulated person with an everyday taste, for real models."""
