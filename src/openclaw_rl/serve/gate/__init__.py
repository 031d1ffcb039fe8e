"""Replies for the gate, which compares versions before they answer anyone."""
