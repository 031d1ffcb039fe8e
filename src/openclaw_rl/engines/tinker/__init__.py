"""The Tinker service as an engine: a process that answers the calls of the gateway by the SDK."""
