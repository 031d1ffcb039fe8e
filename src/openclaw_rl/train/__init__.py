"""Room 4: judged turns in, policy versions out."""
