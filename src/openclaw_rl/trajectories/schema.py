"""The nouns of a trajectory file. docs/guides/data.md tells the format; `parsing.py` makes them of JSON.

`type`, `prompt`, `response`, `next_state` and `trainable` are what people write; the rest is what an export adds, so
that an import is its inverse. P prompt tokens, R response tokens. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.common.message_hash import text_of, typed
from openclaw_rl.store.turn_states import Cause
from openclaw_rl.types import ExchangeStatus, FinishReason, Kind, Message, Sampling, Span, Vote

LONGEST_NAME = 500
"""Characters of a session's name and of an id."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Refused(Exception):
    """Why a trajectory is not taken. `reason` is the same for all of a kind; `detail` says it of this one."""

    def __init__(self, reason: str, detail: str, turn: int | None = None) -> None:
        super().__init__(detail if turn is None else f"turn {turn}: {detail}")
        self.reason, self.detail, self.turn = reason, str(self), turn


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVerdict:
    score: Literal[-1, 0, 1] | None
    hints: tuple[str, ...] = ()
    judge: str = "import"
    reason: str = ""
    explicit: bool = False
    votes: tuple[Vote, ...] = ()
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFeedback:
    id: str
    score: Literal[-1, 0, 1] | None = None
    comment: str | None = None
    correction: str | None = None
    given_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReaction:
    """How `next_state` was found, and when."""

    how: str
    source: str | None = None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDropped:
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTurn:
    """One call of the model. The token arrays stand together, with the `identity` of the model that they belong to."""

    type: Kind
    prompt: str | None = None  # what the user said
    response: str | None = None  # what was answered
    next_state: str | list[dict[str, Any]] | None = None  # what came back: words, or messages
    trainable: bool | None = None
    untrainable: str | None = None  # why not
    redacted: bool = False  # captured without its words
    removed: tuple[str, ...] = ()  # kinds of findings that `data export --redact` took out of its words
    id: str | None = None
    parent: str | None = None
    agent: str = ""
    user: str = ""
    dialect: str = "import"
    messages: list[dict[str, Any]] | None = None  # everything before the reply; `prompt` is its last words
    message: dict[str, Any] | None = None  # the whole reply; `response` is its words
    tools: tuple[dict[str, Any], ...] = ()
    template: dict[str, Any] | None = None  # variables for the chat template
    sampling: Sampling = field(default_factory=Sampling)
    prompt_ids: list[int] | None = None  # [P]
    response_ids: list[int] | None = None  # [R]
    logprobs: list[float | None] | None = None  # [R]; null: not known
    mask: list[bool] | None = None  # [R] tokens that may train; default: all
    spans: tuple[Span, ...] | None = None  # which version sampled which tokens
    version: int = 0
    identity: str | None = None
    off_policy: bool = False  # its tokens were made from words, not sampled
    finish: FinishReason | None = FinishReason.STOP
    status: ExchangeStatus = ExchangeStatus.DONE
    error: str | None = None
    relation: str = "fresh"
    relation_of: str | None = None
    unlinked: str | None = None
    reaction: FileReaction | None = None
    feedback: tuple[FileFeedback, ...] = ()
    verdict: FileVerdict | None = None
    dropped: FileDropped | None = None
    at: float | None = None  # when it was asked
    first_token_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One session. `agent` and `user` hold for every turn that names none."""

    session_id: str
    turns: tuple[FileTurn, ...]
    agent: str = ""
    user: str = ""


def prompt_of(messages: Sequence[Message]) -> str:
    """What a person reads as the prompt: the last user message's words, without what clients wrote into them."""
    return next((typed(text_of(m)).strip() for m in reversed(messages) if m.get("role") == "user"), "")


def words_of(messages: Sequence[Message], message: Message) -> dict[str, str]:
    """`prompt` and `response` for people. What is not `whole` stands in `messages` and `message` alone."""
    said = {"prompt": prompt_of(messages), "response": text_of(message)}
    return {key: text for key, text in said.items() if whole(text)}


def whole(text: str) -> bool:
    """No half of a surrogate pair stands in it: JSON can escape one, but no column of text holds it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def made_whole(text: str) -> str:
    """Halves of surrogate pairs replaced by U+FFFD, for readers that know no others."""
    return text if whole(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
