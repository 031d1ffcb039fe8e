"""Episodes in the gateway: tickets, limits and HTTP handlers (docs/concepts/episodes.md)."""
