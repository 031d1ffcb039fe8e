"""The local trainer: samples in, one optimizer step, a policy folder out. Imports torch."""
