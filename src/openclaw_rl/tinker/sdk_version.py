"""Versions of the Tinker SDK that work here. Imports no SDK."""

from __future__ import annotations

import re
from importlib import metadata

from openclaw_rl.errors import ConfigError

MIN_VERSION = (0, 24, 1)
BELOW_VERSION = (0, 26)
REQUIREMENT = "tinker>=0.24.1,<0.26"
"""As in the extra `tinker` of pyproject.toml."""


def check_sdk() -> None:
    """Raise `ConfigError` unless the SDK is installed in a version that works."""
    try:
        found = metadata.version("tinker")
    except metadata.PackageNotFoundError:
        found = None
    if (wrong := version_problem(found)) is not None:
        raise ConfigError(f"{wrong}. Install it with: pip install '{REQUIREMENT}'")


def version_problem(found: str | None) -> str | None:
    """Return what is wrong with an installed version, or None. `found`: None if it is missing."""
    if found is None:
        return "Tinker needs its SDK, the package tinker, which is not installed here"
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if MIN_VERSION <= numbers < BELOW_VERSION:
        return None
    return f"the Tinker SDK installed here is {found}; expected {REQUIREMENT}"
