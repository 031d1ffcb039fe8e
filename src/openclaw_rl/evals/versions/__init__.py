"""Evaluation of a home's versions through its gateway: one against another, and by the programs of others."""
