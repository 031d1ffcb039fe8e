"""The personalisation protocol: people with hidden tastes, sessions until three satisfying first replies in a row."""
