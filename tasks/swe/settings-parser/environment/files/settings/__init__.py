"""Files of settings."""

from settings.parser import SettingsError, parse

__all__ = ["SettingsError", "parse"]
