"""Statistics without dependencies on the project: agreement of raters, and sequential tests."""
