"""Plug-ins: Python files of the owner, named by path in the settings. No other code is loaded."""
