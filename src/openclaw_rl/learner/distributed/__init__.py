"""Process groups and sharding across ranks."""
