"""The Fireworks service: export of a version in its layout, and the upload."""
