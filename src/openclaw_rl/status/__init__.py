"""Status of a running system: status page, health snapshot, diagnoses."""
