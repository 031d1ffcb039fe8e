"""Which version answers a request, and which versions the engine holds."""
