"""The head: a judge that reads the hidden states of the frozen base, calibrated and cross-validated."""
