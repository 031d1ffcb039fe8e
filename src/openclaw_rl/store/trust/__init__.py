"""Whose evidence counts for whom: trust in judges by person, and evidence that is set aside in what is common."""
