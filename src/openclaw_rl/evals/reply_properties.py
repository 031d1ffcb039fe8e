"""Measurable properties of a reply to an evaluation task. They need no judge and hold for any model.

Most are verifiable instructions of IFEval (Zhou et al., arXiv:2311.07911), checked strictly: the whole reply counts,
and no opening sentence is removed first. `PROPERTIES` has the definition and the source of each.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from openclaw_rl.evals import code_runner

# Share of repeated 4-word sequences.
MAX_REPETITION = 0.2
# ISO 639-1 codes between which the language is decided.
LANGUAGES = ("de", "en", "es", "fr", "ja", "zh")

OWN = "own definition"

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
_BULLET = re.compile(r"^\s*[-*]\s+\S", re.MULTILINE)
_MARKDOWN = re.compile(r"^\s*(?:[-*+•]\s|\d+[.)]\s|#{1,6}\s|```)|\*\*", re.MULTILINE)
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)```\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReply:
    """Reply to a task: its visible text, its tool calls, and why it ended (`stop`, `length`, `tool_calls`)."""

    text: str
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish_reason: str = "stop"

    @classmethod
    def from_choice(cls, choice: Mapping[str, Any]) -> TaskReply:
        """Return the reply in `choices[0]` of a chat completion."""
        message = choice["message"]
        return cls(
            text=message.get("content") or "",
            tool_calls=message.get("tool_calls") or (),
            finish_reason=choice["finish_reason"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyProperty:
    """A named property. `violation` maps a reply and the task's argument to why it is violated, None if it holds."""

    name: str
    definition: str
    source: str
    violation: Callable[[TaskReply, Any], str | None]


def find_violations(reply: TaskReply, wanted: Mapping[str, Any]) -> dict[str, str | None]:
    """Return for each wanted property (name -> argument) why the reply violates it, or None if it holds."""
    return {name: PROPERTIES[name].violation(reply, argument) for name, argument in wanted.items()}


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _normalized_words(text: str) -> list[str]:
    return _words(unicodedata.normalize("NFKC", text).casefold())


def _contains_sequence(sequence: Sequence[str], part: Sequence[str]) -> bool:
    return any(sequence[i : i + len(part)] == part for i in range(len(sequence) - len(part) + 1))


def _check_text(reply: TaskReply, _: None) -> str | None:
    return None if _words(reply.text) else "the reply has no words"


def _check_finish(reply: TaskReply, _: None) -> str | None:
    return "the reply was cut off at its token limit" if reply.finish_reason == "length" else None


def _check_repetition(reply: TaskReply, _: None) -> str | None:
    tokens = _words(reply.text)
    sequences = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    repeated = 1 - len(set(sequences)) / len(sequences) if sequences else 0.0
    return (
        None
        if repeated <= MAX_REPETITION
        else f"{repeated:.0%} of the 4-word sequences are repeated"
    )


def _check_answer(reply: TaskReply, answers: Sequence[str]) -> str | None:
    tokens = _normalized_words(reply.text)
    if any(_contains_sequence(tokens, _normalized_words(answer)) for answer in answers):
        return None
    return f"expected the answer {' or '.join(answers)}"


def _check_max_words(reply: TaskReply, most: int) -> str | None:
    count = len(_words(reply.text))
    return None if count <= most else f"expected at most {most} words, got {count}"


def _check_min_words(reply: TaskReply, least: int) -> str | None:
    count = len(_words(reply.text))
    return None if count >= least else f"expected at least {least} words, got {count}"


def _check_sentences(reply: TaskReply, expected: int) -> str | None:
    parts = [part for part in _SENTENCE_END.split(reply.text) if _words(part)]
    return None if len(parts) == expected else f"expected {expected} sentences, got {len(parts)}"


def _check_bullets(reply: TaskReply, expected: int) -> str | None:
    count = len(_BULLET.findall(reply.text))
    return None if count == expected else f"expected {expected} bullets, got {count}"


def _check_plain_text(reply: TaskReply, _: None) -> str | None:
    match = _MARKDOWN.search(reply.text)
    return None if match is None else f"Markdown in the reply: {match.group().strip()!r}"


def _check_json(reply: TaskReply, keys: Sequence[str]) -> str | None:
    fenced = _FENCED.fullmatch(reply.text)
    try:
        value = json.loads(fenced.group(1) if fenced else reply.text)
    except (ValueError, RecursionError):
        return "expected a JSON object, got other text"
    if not isinstance(value, dict):
        return "expected a JSON object, got another JSON value"
    return (
        None
        if set(value) == set(keys)
        else f"expected the keys {sorted(keys)}, got {sorted(value)}"
    )


# Tasks are checked in threads, and the identifier loads once.
_identifier_lock = threading.Lock()


@cache
def _language_identifier() -> Any:
    # Loads for a second, so only when needed.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(LANGUAGES)
    return identifier


def _check_language(reply: TaskReply, expected: str) -> str | None:
    with _identifier_lock:
        language = (
            _language_identifier().classify(reply.text)[0] if _words(reply.text) else "unknown"
        )
    return None if language == expected else f"expected the language {expected}, got {language}"


def _check_case(reply: TaskReply, expected: str) -> str | None:
    changed = reply.text.upper() if expected == "upper" else reply.text.lower()
    return None if reply.text == changed else f"expected {expected}-case letters only"


def _check_forbidden(reply: TaskReply, forbidden: Sequence[str]) -> str | None:
    tokens = set(_normalized_words(reply.text))
    matches = [word for word in forbidden if word.casefold() in tokens]
    return None if not matches else f"forbidden words: {', '.join(matches)}"


def _check_ending(reply: TaskReply, phrase: str) -> str | None:
    ending = reply.text.strip().strip('"').casefold()
    return None if ending.endswith(phrase.casefold()) else f"expected {phrase!r} at the end"


def _check_code(reply: TaskReply, wanted: Mapping[str, Any]) -> str | None:
    return code_runner.failure_reason(
        code_runner.extract_code(reply.text), wanted["function"], wanted["cases"]
    )


def _check_call(reply: TaskReply, wanted: Mapping[str, Any]) -> str | None:
    name = wanted["name"]
    arguments = wanted["arguments"]
    if len(reply.tool_calls) != 1:
        return f"expected one call of {name}, got {len(reply.tool_calls)} calls"
    function = reply.tool_calls[0]["function"]
    try:
        called_with = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return f"the arguments are not valid JSON: {function['arguments'][:200]!r}"
    if (function["name"], called_with) != (name, arguments):
        return f"expected {name}({dict(arguments)}), got {function['name']}({called_with})"
    return None


def _by_name(
    *rows: tuple[str, Callable[[TaskReply, Any], str | None], str, str],
) -> Mapping[str, ReplyProperty]:
    return {
        name: ReplyProperty(name=name, definition=definition, source=source, violation=violation)
        for name, violation, definition, source in rows
    }


PROPERTIES: Mapping[str, ReplyProperty] = _by_name(
    (
        "text_present",
        _check_text,
        "the reply has at least one word (a run of letters, digits and _)",
        OWN,
    ),
    ("finished", _check_finish, "the reply ended by itself, not at its token limit", OWN),
    (
        "no_repetition",
        _check_repetition,
        f"at most {MAX_REPETITION:.0%} of the 4-word sequences occurred before in the reply",
        "seq-rep-4 of arXiv:1908.04319",
    ),
    (
        "reference_answer",
        _check_answer,
        "one of the reference answers is in the reply as whole words; case and punctuation are ignored",
        "accuracy of arXiv:2307.03172",
    ),
    (
        "max_words",
        _check_max_words,
        "at most the given number of words",
        "IFEval length_constraints:number_words",
    ),
    (
        "min_words",
        _check_min_words,
        "at least the given number of words",
        "IFEval length_constraints:number_words",
    ),
    (
        "sentence_count",
        _check_sentences,
        "exactly the given number of sentences; a sentence ends with . ! or ? before white space or the end",
        "IFEval length_constraints:number_sentences",
    ),
    (
        "bullet_count",
        _check_bullets,
        "exactly the given number of lines that begin with - or *",
        "IFEval detectable_format:number_bullet_lists",
    ),
    (
        "plain_text",
        _check_plain_text,
        "no Markdown: no list, heading, bold text or code block",
        OWN,
    ),
    (
        "json_object",
        _check_json,
        "the whole reply is one JSON object with exactly the given keys; a code block around it is accepted",
        "IFEval detectable_format:json_format",
    ),
    (
        "reply_language",
        _check_language,
        f"py3langid finds the given language, of {', '.join(LANGUAGES)}",
        "IFEval language:response_language",
    ),
    (
        "letter_case",
        _check_case,
        "all letters are upper case, or all are lower case",
        "IFEval change_case:english_capital, change_case:english_lowercase",
    ),
    (
        "forbidden_words",
        _check_forbidden,
        "none of the given words occurs",
        "IFEval keywords:forbidden_words",
    ),
    (
        "end_phrase",
        _check_ending,
        "the reply ends with the given phrase",
        "IFEval startend:end_checker",
    ),
    (
        "passes_cases",
        _check_code,
        "the function in the reply returns the expected value of every test case",
        "functional correctness of arXiv:2107.03374, section 2.1",
    ),
    (
        "exact_call",
        _check_call,
        "the reply has exactly one tool call, with the expected name and arguments",
        "AST match of the Berkeley Function-Calling Leaderboard, for one expected value",
    ),
)
