"""Local trainer: takes samples, runs one optimizer step and writes a policy folder. Imports torch."""
