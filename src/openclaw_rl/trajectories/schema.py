"""Data types of a trajectory file. docs/guides/data.md documents the format; `parser.py` parses JSON to them.

People write `type`, `prompt`, `response`, `next_state` and `trainable`. An export adds the other keys, so that an
import is its inverse. P prompt tokens, R response tokens. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from openclaw_rl.common.message_hash import message_text, strip_client_text
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.imported_turns import DropRecord
from openclaw_rl.types import ExchangeStatus, FinishReason, Kind, Message, Sampling, Span, Vote

MAX_NAME_LENGTH = 500
"""Maximum length of a session's name and of an id, in characters."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class TrajectoryRefused(Exception):
    """A trajectory cannot be imported. `reason`: the kind of problem; `detail`: the specific problem."""

    def __init__(self, reason: str, detail: str, turn: int | None = None) -> None:
        super().__init__(detail if turn is None else f"turn {turn}: {detail}")
        self.reason = reason
        self.detail = str(self)
        self.turn = turn


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVerdict:
    score: Literal[-1, 0, 1] | None
    hints: tuple[str, ...] = ()
    judge: str = "import"
    reason: str = ""
    reason_code: ReasonCode | None = None
    explicit: bool = False
    weight: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    votes: tuple[Vote, ...] = ()
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFeedback:
    id: str
    score: Literal[-1, 0, 1] | None = None
    comment: str | None = None
    correction: str | None = None
    given_at: float
    given_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReaction:
    """How and when `next_state` was found."""

    how: str
    source: str | None = None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTurn:
    """One call of the model. The token arrays are given together, with the `identity` of their model."""

    type: Kind
    prompt: str | None = None  # text of the last user message
    response: str | None = None  # text of the reply
    next_state: str | list[dict[str, Any]] | None = None  # the reaction: text, or messages
    trainable: bool | None = None
    untrainable: str | None = None  # reason why it cannot train
    untrainable_code: ReasonCode | None = None
    redacted: bool = False  # captured without text
    removed: tuple[str, ...] = ()  # kinds of findings that `data export --redact` removed
    id: str | None = None
    parent: str | None = None
    agent: str = ""
    user: str = ""
    dialect: str = "import"
    # All messages before the reply; `prompt` is the last user text.
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None  # the whole reply; `response` is its text
    tools: tuple[dict[str, Any], ...] = ()
    template: dict[str, Any] | None = None  # variables for the chat template
    # Id -> text of those in `prompt_ids`, which `messages` does not have.
    lessons: dict[str, str] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    prompt_ids: list[int] | None = None  # [P]
    response_ids: list[int] | None = None  # [R]
    logprobs: list[float | None] | None = None  # [R]; null: unknown
    mask: list[bool] | None = None  # [R] tokens that may train; default: all
    spans: tuple[Span, ...] | None = None  # version that sampled each range of tokens
    version: int = 0
    identity: str | None = None
    off_policy: bool = False  # its tokens were tokenised from text, not sampled
    finish: FinishReason | None = FinishReason.STOP
    status: ExchangeStatus = ExchangeStatus.DONE
    error: str | None = None
    relation: str = "fresh"
    relation_of: str | None = None
    unlinked: str | None = None
    unlinked_code: ReasonCode | None = None
    reaction: FileReaction | None = None
    feedback: tuple[FileFeedback, ...] = ()
    verdict: FileVerdict | None = None
    dropped: DropRecord | None = None
    at: float | None = None  # time of the request
    first_token_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One session. `agent` and `user` are defaults for its turns."""

    session_id: str
    turns: tuple[FileTurn, ...]
    agent: str = ""
    user: str = ""


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the readable prompt: the text of the last user message, without what the client program added."""
    return next(
        (
            strip_client_text(message_text(m)).strip()
            for m in reversed(messages)
            if m.get("role") == "user"
        ),
        "",
    )


def prompt_and_response(messages: Sequence[Message], message: Message) -> dict[str, str]:
    """Return the readable `prompt` and `response`. Text that is not valid Unicode is omitted."""
    texts = {"prompt": prompt_of(messages), "response": message_text(message)}
    return {key: text for key, text in texts.items() if is_valid_unicode(text)}


def is_valid_unicode(text: str) -> bool:
    """Return True if the text has no half of a surrogate pair. JSON can escape one; a text column cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs by U+FFFD, for readers that accept only valid Unicode."""
    return (
        text
        if is_valid_unicode(text)
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
