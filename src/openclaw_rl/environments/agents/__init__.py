"""Agents of this project: small clients of the gateway that play episodes."""
