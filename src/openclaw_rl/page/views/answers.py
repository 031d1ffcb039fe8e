"""Replies of the base and of a later version to the same prompt of a person, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.page.version_replies import (
    CACHE_NAME,
    AnswerState,
    VersionAnswer,
    VersionReplies,
)
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.page.word_diff import TextRun, compare_words
from openclaw_rl.status.conversations.turn_words import asked_words
from openclaw_rl.store import exchanges

PROMPTS = 3
"""Prompts of a person that both versions answer."""
BASE = 0
_NO_TOKENIZER = "the model's tokenizer is not on this machine, so that its replies cannot be read"


def collect_answers(request: ViewRequest) -> Mapping[str, Any]:
    """Return both replies to the prompt of a turn as far as they are there. The first call begins the first reply."""
    turn = request.text("turn")
    version = request.integer("version")
    exchange = exchanges.get_readable(request.conn, [turn]).get(turn)
    if exchange is None or version is None or not len(exchange.request.prompt_ids):
        raise NotFound("The prompt of this turn is not stored (any more).")
    replies: VersionReplies = request.cache[CACHE_NAME]
    prompt_ids = exchange.request.prompt_ids.tolist()
    base = replies.get(BASE, turn, prompt_ids)
    later: VersionAnswer | None = None
    # One after the other: each reply is shown as soon as it is there.
    if base.state is AnswerState.READY:
        later = replies.get(version, turn, prompt_ids)
    texts = [_text_of(answer, request) for answer in (base, later)]
    return {
        "turn": turn,
        "asked": asked_words(exchange.request),
        "lessons_in_prompt": len(exchange.request.lessons),
        "is_pending": any(
            answer.state is AnswerState.PENDING for answer in (base, later) if answer
        ),
        "has_failed": any(answer.state is AnswerState.FAILED for answer in (base, later) if answer),
        "is_same": None not in texts and texts[0] == texts[1],
        "version": version,
        "columns": _columns((base, later), texts, version),
    }


def _text_of(answer: VersionAnswer | None, request: ViewRequest) -> str | None:
    """Return the text of a reply; None before it is there, and without a tokenizer."""
    if answer is None or answer.state is not AnswerState.READY:
        return None
    parts = request.tokens.split(answer.token_ids)
    return None if parts is None else "".join(parts).strip()


def _columns(
    pair: Sequence[VersionAnswer | None], texts: Sequence[str | None], version: int
) -> list[dict[str, Any]]:
    runs: list[list[TextRun] | None] = [
        None if text is None else [TextRun(text, False)] for text in texts
    ]
    before, after = texts
    if before is not None and after is not None:
        runs = list(compare_words(before, after))
    titles = ("Before: the base model", f"After: version {version}")
    marks = ("del", "ins")
    return [
        {
            "title": title,
            "mark": mark,
            "runs": parts,
            "note": _note(answer),
            "is_cut": _is_cut(answer),
        }
        for title, mark, parts, answer in zip(titles, marks, runs, pair, strict=True)
    ]


def _note(answer: VersionAnswer | None) -> str:
    if answer is None:
        return "next"
    if answer.state is AnswerState.PENDING:
        return answer.note or "generating the reply …"
    if answer.state is AnswerState.FAILED:
        return f"No reply: {answer.note}."
    return f"No reply: {_NO_TOKENIZER}."


def _is_cut(answer: VersionAnswer | None) -> bool:
    return answer is not None and answer.is_cut


VIEWS: Sequence[View] = (
    View(path="/ui/answers/{turn}", template="answers.html", collect=collect_answers),
)
