"""Small helpers that every stage may use: hashing, durable files, process signals, logging."""
