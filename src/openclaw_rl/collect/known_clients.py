"""Recognise the prompts that known client programs write themselves, by `assets/client_prompts.yaml`."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Literal

import yaml
from cachetools import LRUCache

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.linear_regex import LinearPattern

PromptKind = Literal["user", "system", "continuation", "cleared", "summary", "acknowledgement"]
# Of each kind; one takes some 400 bytes.
_CACHED_TEXTS = 8192


class KnownClients:
    """The client prompts of one kind of message. A history repeats its messages, so results are cached by text."""

    def __init__(self, kind: PromptKind) -> None:
        self._patterns = [
            LinearPattern(p) for entry in _read_prompts()[kind] for p in entry["patterns"]
        ]
        self._results: LRUCache[bytes, str | None] = LRUCache(_CACHED_TEXTS)

    def match(self, text: str) -> str | None:
        """Return the part of the text that a client wrote, or None."""
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in self._results:
            found = next((part for p in self._patterns if (part := p.find(text))), None)
            self._results[key] = found
        return self._results[key]


@cache
def _read_prompts() -> dict[str, list[dict[str, list[str]]]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, list[dict[str, list[str]]]] = yaml.load(
        (ASSETS / "client_prompts.yaml").read_bytes(), loader
    )
    return found
