"""The Tinker service: its SDK, and the files of versions that it holds."""
