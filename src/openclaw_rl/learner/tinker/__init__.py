"""The Tinker service as a trainer: our loss as advantages per token, and steps that the service takes."""
