"""Methods: turn samples and log-probabilities into terms of the loss. Pure: no I/O, no torch."""
