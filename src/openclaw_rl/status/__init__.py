"""Reports on a running system: status page, health snapshot, diagnoses."""
