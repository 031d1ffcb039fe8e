"""Set apart the text that client programs add to a person's message, by `assets/client_context.yaml`."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.client_patterns import is_typed_during_run

Tags = tuple[str, str]
"""Where a text begins and ends."""


def _read_tags(kind: str) -> tuple[Tags, ...]:
    return tuple((entry["begin"], entry["end"]) for entry in _SHIPPED[kind])


_SHIPPED = read_yaml_asset("client_context.yaml")
_BLOCKS = _read_tags("blocks")
_PREFIXES = _read_tags("prefixes")
_WRAPPERS = _read_tags("wrappers")


def strip_added_text(text: str) -> str:
    """Return a user message without the text that a client added. What a person typed during a run always stays."""
    for begin, end in _PREFIXES:
        if text.lstrip().startswith(begin) and end in text:
            text = text[text.rindex(end) + len(end) :]
    for begin, end in _BLOCKS:
        if begin in text:
            text = "\n".join(_parts_outside(text, begin, end))
    for begin, end in _WRAPPERS:
        if begin in text and end in text:
            text = text.replace(begin, "").replace(end, "")
    return text


def _parts_outside(text: str, begin: str, end: str) -> Iterator[str]:
    """Yield what stands before, between and behind blocks, without white space at the cuts, empty parts left out."""
    at = 0
    while True:
        start = text.find(begin, at)
        stop = text.find(end, start + len(begin)) if start >= 0 else -1
        if stop < 0:
            break
        stop += len(end)
        block = text[start:stop]
        part = text[at:stop] if is_typed_during_run(block) else text[at:start]
        if part.strip():
            yield part.strip()
        at = stop
    rest = text[at:].strip()
    if rest:
        yield rest
