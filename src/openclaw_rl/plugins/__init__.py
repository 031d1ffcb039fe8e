"""Code of the owner's: one file each, named by its path in the settings. Nothing else is ever loaded."""
