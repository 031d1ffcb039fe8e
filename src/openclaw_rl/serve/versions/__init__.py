"""The version that answers a request, and the versions that the engine holds."""
