"""Find the settings that an unknown name means: names of other programs, of settings and of flags, or similar ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from openclaw_rl.settings import aliases

# Ratio of difflib; below it, the meanings usually differ: --max-step and --max-turns have 0.7.
_MIN_SIMILARITY = 0.8
_MAX_SUGGESTIONS = 3


def settings_meant(name: str, keys: Iterable[str]) -> list[str]:
    """Return the settings that a flag or the last part of a key means; several if settings share that name.

    `keys`: all settings. The name may be misspelled a little. Empty if no name is near.
    """
    meanings: dict[str, list[str]] = {}
    for key in sorted(keys):
        meanings.setdefault(key.rpartition(".")[2], []).append(key)
    meanings |= _alias_meanings()
    near = difflib.get_close_matches(_word_of(name), meanings, 1, _MIN_SIMILARITY)
    return meanings[near[0]] if near else []


def _alias_meanings() -> dict[str, list[str]]:
    """Return the setting of each word by which other programs name one."""
    meanings: dict[str, list[str]] = {}
    for alias in aliases.by_form("flag").values():
        meanings.setdefault(_word_of(alias.name), list(alias.keys[:1]))
    for key, other_names in aliases.alias_table("other_names").items():
        for word in other_names.split():
            meanings.setdefault(word, [key])
    return meanings


def suggest_flag(name: str, keys: Iterable[str]) -> str:
    """Return a sentence that names the flags for what an unknown flag means; empty if nothing is near."""
    flags = [_flag_for(key) for key in settings_meant(name, keys)[:_MAX_SUGGESTIONS]]
    return f" Did you mean {' or '.join(flags)}?" if flags else ""


def _word_of(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _flag_for(key: str) -> str:
    flag = next(
        (alias.name for alias in aliases.by_form("flag").values() if alias.keys[:1] == (key,)), None
    )
    return f"{flag} ({key})" if flag else f"--set {key}=VALUE"
