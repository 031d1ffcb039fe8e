"""Recognise the prompts that known client programs write themselves, by `assets/client_prompts.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Literal

from cachetools import LRUCache

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.linear_regex import LinearPattern

PromptKind = Literal["user", "system", "continuation", "cleared", "summary", "acknowledgement"]
# Of each kind; one takes some 400 bytes.
_CACHED_TEXTS = 8192


class KnownClients:
    """The client prompts of one kind of message. A history repeats its messages, so results are cached by text."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [LinearPattern(pattern) for pattern in patterns]
        self._results: LRUCache[bytes, str | None] = LRUCache(_CACHED_TEXTS)

    def match(self, text: str) -> str | None:
        """Return the part of the text that a client wrote, or None."""
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in self._results:
            parts = (pattern.find(text) for pattern in self._patterns)
            self._results[key] = next(filter(None, parts), None)
        return self._results[key]


def client_patterns(kind: PromptKind) -> list[str]:
    """Return the patterns of the prompts that known clients write as this kind of message."""
    return [pattern for entry in _read_prompts()[kind] for pattern in entry["patterns"]]


@cache
def _read_prompts() -> dict[str, list[dict[str, list[str]]]]:
    prompts: dict[str, list[dict[str, list[str]]]] = read_yaml_asset("client_prompts.yaml")
    return prompts
