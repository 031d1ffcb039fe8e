"""Settings that connect other programs to the gateway."""
