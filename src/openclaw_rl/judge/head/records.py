"""Input of the head: request, reply and reaction of a turn as one text, and its token ids with the spans to pool.

The texts of people and tools are plain text: control tokens in them have no effect. Long texts keep head and tail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openclaw_rl.common.assets import load_yaml, read_asset
from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import (
    message_text,
    normalise_text,
    strip_time_stamp,
    visible_text,
)
from openclaw_rl.render.control_tokens import ControlTokenText
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.tokenizer import CachedTokenizer
from openclaw_rl.types import Ids, JudgeInput, Message, StateRequest

_RAW_FORM = read_asset("judge_head.yaml")
_FORM = load_yaml(_RAW_FORM)
FORM_DIGEST = hashlib.sha256(_RAW_FORM.encode()).hexdigest()[:8]
ADDRESSED: Sequence[str] = _FORM["addressed"]
"""Texts that address the judge, as a page or a tool result may."""
DEPTHS = (0.5, 0.6, 0.7)
"""Of the layers that are read. The middle ones know more about a reaction than the last ones, which choose a word."""
POOLINGS = 3
"""Spans of a record: see `RecordTokenizer.encode_record`."""
NO_OUTPUT = "(no output)"
"""Text of a tool result that has none: many calls that succeed print nothing."""
REQUEST_CHARS = 300
REPLY_CHARS = 400
REACTION_CHARS = 600
"""Characters that are read of each part; the first reaction of a record is never left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """The parts of a turn that the head reads. `author` of the reaction: user or tool, and whether a call failed."""

    request: str
    reply: str
    reaction: str
    author: str
    is_tool: bool
    has_error_mark: bool


def make_record(item: JudgeInput) -> HeadRecord | None:
    """Return what is read of a turn; None if the reaction has no text."""
    said, results = _by_author(item.reaction.messages)
    comments = [one.comment for one in item.reaction.feedback if one.comment]
    texts = [*map(_reaction_text, results), *map(_reaction_text, said), *comments]
    reaction = "\n".join(text for text in texts if text.strip())
    if not reaction:
        return None
    is_tool = not said and not comments
    failed = any(message.get("is_error") is True for message in results)
    asked, _ = _by_author(item.messages)
    return HeadRecord(
        request=visible_text(asked[-1]) if asked else "",
        reply=_reply_text(item.reply),
        reaction=reaction,
        author=_author(is_tool=is_tool, failed=failed),
        is_tool=is_tool,
        has_error_mark=failed,
    )


def _by_author(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the messages of the user, and all others."""
    said = [message for message in messages if message.get("role") == "user"]
    return said, [message for message in messages if message.get("role") != "user"]


def _author(*, is_tool: bool, failed: bool) -> str:
    if not is_tool:
        return "user"
    return "tool (the call failed)" if failed else "tool"


def with_addressed_text(record: HeadRecord, text: str) -> HeadRecord:
    """Return the record with a text in the reaction that addresses the judge."""
    return replace(record, reaction=f"{record.reaction}\n{text}")


def _reaction_text(message: Message) -> str:
    if message.get("role") == "user":
        return strip_time_stamp(visible_text(message))
    return normalise_text(message_text(message)).strip() or NO_OUTPUT


def _reply_text(reply: Message) -> str:
    calls = reply.get("tool_calls") or ()
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    named = [
        f"[tool call] {function.get('name')}({function.get('arguments', '')})"
        for function in functions
        if isinstance(function, dict)
    ]
    return "\n".join([text for text in (visible_text(reply), *named) if text])


class RecordTokenizer:
    """Makes the token ids of records for one base model."""

    def __init__(self, files: ModelFiles) -> None:
        self._tokenizer = CachedTokenizer(files)
        literal = frozenset(filter(self._tokenizer.can_be_text, self._tokenizer.control_ids))
        self._literal = ControlTokenText(literal, ())
        self._header = self._encode(_FORM["header"])
        self._end = self._encode(_FORM["end"])

    def _encode(self, text: str) -> Ids:
        return self._tokenizer.encode(text)

    def encode_record(self, record: HeadRecord) -> StateRequest:
        """Return the request for the states of a record. Spans: its last token, its reaction, and what follows it."""
        before = self._encode(
            _FORM["record"].format(
                request=self._plain(record.request, REQUEST_CHARS),
                reply=self._plain(record.reply, REPLY_CHARS),
                author=record.author,
            )
        )
        reaction = self._encode(" " + self._plain(record.reaction, REACTION_CHARS))
        ids = np.concatenate([self._header, before, reaction, self._end])
        start = len(self._header) + len(before)
        end = start + len(reaction)
        return StateRequest(
            ids=ids,
            depths=DEPTHS,
            spans=((len(ids) - 1, len(ids)), (start, end), (end, len(ids))),
            shared=len(self._header),
        )

    def _plain(self, text: str, limit: int) -> str:
        return self._literal.mark(head_and_tail(text.strip(), limit))
