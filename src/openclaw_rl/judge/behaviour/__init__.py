"""Evidence from what people do where they say nothing: one pure function per signal, and their verdicts."""
