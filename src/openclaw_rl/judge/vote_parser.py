"""From a judge's words to a vote. Tolerant of form (fences, prose, reasoning), strict in meaning. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from openclaw_rl.errors import JudgeError
from openclaw_rl.types import Vote

HINT_CHARS = 400  # two long sentences; a longer one is an answer, not an instruction
TAUGHT_CHARS = 1200  # of a teacher's hint, which may say what a better reply holds
REASON_CHARS = 300
# A hint is put inside a user's message: a template's control token in it would end that message.
_CONTROL = re.compile(r"<\|[^|>]{1,40}\|>|<｜[^｜>]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]", re.IGNORECASE)
_SCORES = {"1": 1, "+1": 1, "0": 0, "-1": -1}


def parse(text: str) -> Vote:
    """The vote in the last JSON object that has a `score`. Anything else is an unusable vote with its error."""
    found = [value for value in _objects(spoken(text)) if "score" in value]
    if not found:
        return Vote(score=None, error=f"expected a JSON object with score, hint and reason; got {size(text)}")
    answer = found[-1]
    score = _score(answer["score"])
    if score is None:
        return Vote(score=None, error=f"expected score 1, 0 or -1; got another {kind(answer['score'])}")
    hint = answer.get("hint")
    if hint is not None and not isinstance(hint, str):
        return Vote(score=None, error=f"expected hint to be text or null; got {kind(hint)}")
    return Vote(score=score, hint=_hint(hint), reason=_reason(answer.get("reason")))


def parse_hint(text: str) -> str | None:
    """The hint in a teacher's last JSON object that has one; None: there is nothing to teach.

    Raises `JudgeError` when the answer is none, or its hint cannot be put into a prompt.
    """
    found = [value["hint"] for value in _objects(spoken(text)) if "hint" in value]
    if not found:
        raise JudgeError(f"expected a JSON object with a hint; got {size(text)}")
    if found[-1] is not None and not isinstance(found[-1], str):
        raise JudgeError(f"expected hint to be text or null; got {kind(found[-1])}")
    hint = _cleaned(found[-1])
    if hint is not None and len(hint) > TAUGHT_CHARS:
        raise JudgeError(f"expected a hint of at most {TAUGHT_CHARS} characters; got {len(hint)}")
    if hint is not None and _CONTROL.search(hint):
        raise JudgeError("expected a hint in words; got a chat template's control tokens in it")
    return hint


def spoken(text: str) -> str:
    """What a thinking model says after its thoughts; of thoughts that were cut off, nothing."""
    after = text.rpartition("</think>")[2].lstrip()
    return "" if after.startswith("<think>") else after


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in a text, in order."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict):
                yield value
        at = text.find("{", end)


def _score(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return _SCORES.get(value.strip())
    return int(value) if value in (1, 0, -1) else None


def _hint(value: str | None) -> str | None:
    words = _cleaned(value)
    return None if words is None or len(words) > HINT_CHARS or _CONTROL.search(words) else words


def _cleaned(value: str | None) -> str | None:
    words = " ".join(sound(value or "").split()).strip("\"'`")
    return None if not words or words.lower() in ("null", "none", "n/a") else words


def _reason(value: Any) -> str:
    return " ".join(sound(value).split())[:REASON_CHARS] if isinstance(value, str) else ""


def sound(text: str) -> str:
    """With a question mark for each half of a surrogate pair: JSON can escape one, no store and no prompt holds it."""
    return text.encode("utf-8", "replace").decode()


def size(text: str) -> str:
    """What came instead, without its words: they may be a conversation's, and errors reach the log."""
    return f"{len(text)} characters" if text.strip() else "nothing"


def kind(value: Any) -> str:
    """What a JSON value is, without the value."""
    names = {str: "text", int: "number", float: "number", bool: "boolean", list: "list", dict: "object"}
    return names.get(type(value), "null")
