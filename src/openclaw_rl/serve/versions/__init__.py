"""Choice of the version that answers a request, and of the versions that the engine holds."""
