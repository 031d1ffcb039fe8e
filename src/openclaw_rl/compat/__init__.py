"""Helper functions under the names that existing scripts import."""
