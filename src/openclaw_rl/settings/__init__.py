"""Settings: the schema, where each value comes from, and the checks before anything starts."""
