"""Parse votes and hints from model answers; tolerates fences, prose and reasoning around JSON. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from openclaw_rl.errors import JudgeError, UnreadableAnswer, json_type_name
from openclaw_rl.judge.answer_schemas import NO_EVIDENCE
from openclaw_rl.render.lenient_json import read_value
from openclaw_rl.types import Vote

# Two long sentences; a longer one is an answer, not an instruction.
HINT_CHARS = 400
# Limit for a teacher's hint, which may describe the content of a better reply.
TEACHER_HINT_CHARS = 1200
REASON_CHARS = 300
ANSWER_CHARS = 65_536
"""Characters of an answer, from its end, in which the vote is searched."""
MAX_FAILED_STARTS = 256
"""Number of places that look like the start of an object, but cannot be read; then the search ends."""
MAX_SUBJECT_CHARS = 100
MAX_MENDED_STARTS = 32
"""Number of places from the end at which an object is read that is not strict JSON."""
_OBJECT_START = re.compile(r'\{\s*["}]')
_LENIENT_OBJECT_START = re.compile(r"""\{\s*["'\w]""")
# A hint is inserted into a user message; a control token of the template in it would end that message.
_CONTROL_TOKEN = re.compile(
    r"<\|[^|>]{1,40}\|>|<｜[^｜>]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]", re.IGNORECASE
)
_SCORES: Mapping[float, int] = {1.0: 1, 0.0: 0, -1.0: -1}
# Minus, en dash, full-width and small forms.
_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{FULLWIDTH HYPHEN-MINUS}": "-",
        "\N{FULLWIDTH PLUS SIGN}": "+",
    }
)
_KNOWN_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


def parse_vote(text: str) -> Vote:
    """Return the vote in the last JSON object with a `score`, or an unusable vote with an error."""
    answer = _last_object(text, "score")
    if answer is None:
        error = f"expected a JSON object with score, hint and reason; got {describe_size(text)}"
        return Vote(score=None, error=error)
    reason = _clean_reason(answer.get("reason"))
    if _is_no_evidence(answer["score"]):
        return Vote(score=None, reason=reason)
    score = _parse_score(answer["score"])
    if score is None:
        got = json_type_name(answer["score"])
        return Vote(score=None, error=f"expected score +1, 0, -1 or {NO_EVIDENCE!r}; got {got}")
    hint = answer.get("hint")
    if hint is not None and not isinstance(hint, str):
        return Vote(
            score=None, error=f"expected hint to be text or null; got {json_type_name(hint)}"
        )
    words = _clean_text(answer.get("words")) or None
    return Vote(score=score, hint=_parse_judge_hint(hint), reason=reason, words=words)


def parse_hint(text: str) -> str | None:
    """Return the hint in the last JSON object of a teacher's answer that has one; None if that hint is null or empty.

    Raises `JudgeError` if there is no such object or the hint cannot be inserted into a prompt.
    """
    answer = _last_object(text, "hint")
    if answer is None:
        raise JudgeError(f"expected a JSON object with a hint; got {describe_size(text)}")
    value = answer["hint"]
    if not isinstance(value, str | None):
        raise JudgeError(f"expected hint to be text or null; got {json_type_name(value)}")
    hint = _clean_hint(value)
    if hint is None:
        return None
    if len(hint) > TEACHER_HINT_CHARS:
        raise JudgeError(
            f"expected a hint of at most {TEACHER_HINT_CHARS} characters; got {len(hint)}"
        )
    if _CONTROL_TOKEN.search(hint):
        raise JudgeError(
            "expected a plain-text hint; got one with control tokens of a chat template"
        )
    return hint


def parse_lesson(text: str) -> dict[str, Any]:
    """Return the fields of the last JSON object with a `lesson`: those of `LESSON_ANSWER`. Raises `JudgeError`."""
    answer = _last_object(text, "lesson")
    if answer is None:
        raise JudgeError(f"expected a JSON object with a lesson; got {describe_size(text)}")
    lesson = _clean_text(answer["lesson"])
    if _CONTROL_TOKEN.search(lesson):
        raise JudgeError(
            "expected a plain-text lesson; got one with control tokens of a chat template"
        )
    same = answer.get("same")
    numbers = answer.get("contradicts")
    if not isinstance(numbers, list):
        numbers = []
    return {
        "lesson": lesson,
        "scope": answer.get("scope"),
        "subject": _clean_text(answer.get("subject"))[:MAX_SUBJECT_CHARS],
        # A bool is no number.
        "same": same if type(same) is int else None,
        "contradicts": [number for number in numbers if type(number) is int],
    }


def strip_reasoning(text: str) -> str:
    """Return the text after the last `</think>`, or all of it without one; empty if the reasoning was cut off."""
    after = text.rpartition("</think>")[2].lstrip()
    return "" if after.startswith("<think>") else after


def _last_object(text: str, key: str) -> dict[str, Any] | None:
    """Return the last JSON object with this key in an answer, without its reasoning."""
    text = strip_reasoning(text)[-ANSWER_CHARS:]
    with_key = [value for value in map(_lower_keys, _json_objects(text)) if key in value]
    if with_key:
        return with_key[-1]
    starts = [match.start() for match in _LENIENT_OBJECT_START.finditer(text)]
    for start in reversed(starts[-MAX_MENDED_STARTS:]):
        read = read_value(text, start)
        if read is not None and key in (value := _lower_keys(read.value)):
            return value
    return None


def _lower_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items()}


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost JSON objects in a text, in order. The time is bounded for any text."""
    decoder = json.JSONDecoder()
    failed = 0
    start = _OBJECT_START.search(text)
    while start is not None and failed < MAX_FAILED_STARTS:
        try:
            value, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            failed = failed + 1
            end = start.start() + 1
        else:
            yield value
        start = _OBJECT_START.search(text, end)


def _is_no_evidence(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower().replace("_", " ") == NO_EVIDENCE


def _parse_score(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return _SCORES.get(float(value.translate(_SIGNS) if isinstance(value, str) else value))
    except (ValueError, OverflowError):
        return None


def _parse_judge_hint(value: str | None) -> str | None:
    hint = _clean_hint(value)
    return None if hint is None or len(hint) > HINT_CHARS or _CONTROL_TOKEN.search(hint) else hint


def _clean_hint(value: str | None) -> str | None:
    hint = " ".join(replace_surrogates(value or "").split()).strip("\"'`")
    return None if not hint or hint.lower() in ("null", "none", "n/a") else hint


def _clean_text(value: Any) -> str:
    """Return the text of a field; empty if it has none."""
    hint = _clean_hint(value) if isinstance(value, str) else None
    return hint or ""


def _clean_reason(value: Any) -> str:
    return (
        " ".join(replace_surrogates(value).split())[:REASON_CHARS] if isinstance(value, str) else ""
    )


def replace_surrogates(text: str) -> str:
    """Replace each half of a surrogate pair by `?`: JSON can escape one, but no store and no tokenizer accepts it."""
    return text.encode("utf-8", "replace").decode()


def check_answer(content: Any, finish: Any, section: str) -> str:
    """Return an answer's text. Raises `UnreadableAnswer` if it is empty. `section`: settings section of the model."""
    if isinstance(content, list):
        content = "".join(_text_of_part(part) for part in content)
    if isinstance(content, str) and content.strip():
        return replace_surrogates(content)
    more = f" Raise {section}.max_tokens." if finish == "length" else ""
    ended = finish if finish in _KNOWN_FINISH_REASONS else "unknown"
    raise UnreadableAnswer(f"expected an answer, got an empty one (finish_reason {ended}).{more}")


def _text_of_part(part: Any) -> str:
    """Return the text of a content part; empty for parts of other kinds, as reasoning."""
    if not isinstance(part, Mapping) or part.get("type") not in ("text", "output_text", None):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else ""


def describe_size(text: str) -> str:
    """Describe an unexpected answer by its size only: errors are logged, and the text may quote a conversation."""
    return f"{len(text)} characters" if text.strip() else "nothing"
