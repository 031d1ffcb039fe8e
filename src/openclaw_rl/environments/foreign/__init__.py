"""Programs that run under another Python or in a box, without this package."""
