"""Finds the reply in the output that a tracing service stored: ids that the gateway gave, and texts. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REPLY_ID = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{20,64}(?:\.\d+)?")
# Keys under which programs keep the answer, in the order in which they are tried.
_TEXT_KEYS = (
    "content",
    "text",
    "output_text",
    "message",
    "kwargs",
    "choices",
    "generations",
    "messages",
    "output",
    "outputs",
    "answer",
    "response",
    "result",
)
MAX_DEPTH = 12


def find_ids(output: Any) -> list[str]:
    """Return the ids of replies in an output: OpenAI's and Anthropic's clients keep them with the answer."""
    return list(dict.fromkeys(_ids(read_json(output), 0)))


def find_text(output: Any) -> str | None:
    """Return the text of the answer in an output; None if it has none. Of a list, its last item is the answer."""
    return _text(read_json(output), 0)


def read_json(output: Any) -> Any:
    """Return the value of an output that is JSON as text; any other as it is."""
    if isinstance(output, str) and output.lstrip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(output)
        except (ValueError, RecursionError):
            return output
    return output


def _ids(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        id_ = value.get("id")
        if isinstance(id_, str):
            # LangChain puts "run-" or "lc_" before ids of its own, and keeps the others.
            yield from _REPLY_ID.findall(id_)
        for item in value.values():
            yield from _ids(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _ids(item, depth + 1)


def _text(value: Any, depth: int) -> str | None:
    if isinstance(value, str):
        return value if value.strip() else None
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        return _first_text([value[key] for key in _TEXT_KEYS if key in value], depth)
    return _text_of_list(value, depth) if isinstance(value, list) else None


def _text_of_list(values: list[Any], depth: int) -> str | None:
    """Return the text of content parts; of other items, that of the last one that has some."""
    if values and all(map(_is_text_part, values)):
        return "".join(str(part.get("text", "")) for part in values) or None
    return _first_text(values[::-1], depth)


def _is_text_part(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "text"


def _first_text(values: list[Any], depth: int) -> str | None:
    for value in values:
        text = _text(value, depth + 1)
        if text is not None:
            return text
    return None
