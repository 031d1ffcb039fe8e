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
        installed = metadata.version("tinker")
    except metadata.PackageNotFoundError:
        installed = None
    problem = version_problem(installed)
    if problem is not None:
        raise ConfigError(f"{problem}. Install it with: pip install '{REQUIREMENT}'")


def version_problem(installed: str | None) -> str | None:
    """Return what is wrong with an installed version, or None. `installed`: None if it is missing."""
    if installed is None:
        return "Tinker needs its SDK, the package tinker, which is not installed here"
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:3])
    if MIN_VERSION <= numbers < BELOW_VERSION:
        return None
    return f"the Tinker SDK installed here is {installed}; expected {REQUIREMENT}"
