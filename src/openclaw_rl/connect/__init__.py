"""Settings of other programs that make them talk to the gateway."""
