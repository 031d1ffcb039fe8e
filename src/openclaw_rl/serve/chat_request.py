"""What a client asks, whatever dialect it speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.errors import OpenClawError, RequestError
from openclaw_rl.render.reply_parser import Delta
from openclaw_rl.types import FinishReason, Kind, Message, Sampling

MAX_ID = 512  # characters of a session, agent or user id
COLDEST = 0.01
"""Below this temperature sampling is greedy: logits divided by less overflow, and such a distribution is one token."""


def checked_id(value: str, name: str) -> str:
    """`value`, which came as `name`. Raises `RequestError` when it is too long for an id."""
    if len(value) > MAX_ID:
        raise RequestError(f"{name}: expected at most {MAX_ID} characters, got {len(value)}.", param=name)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A decoded, checked request. `sampling.max_tokens` 0: what remains of the context.

    `raw` and `raw_tools` are the client's own bytes of each message and of the tools (empty: unknown): what was worked
    out for the same bytes before holds again.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    user: str = ""
    agent: str = ""
    session: str | None = None
    kind: Kind | None = None
    session_done: bool = False
    size: int = 0  # bytes of the body
    raw: Sequence[bytes] = ()
    raw_tools: bytes = b""
    dialect: str = "chat"
    id_prefix: str = "chatcmpl-"
    template: Mapping[str, Any] = field(default_factory=dict)  # variables for the chat template
    n: int = 1  # choices
    forced: Forced | None = None
    parallel_calls: bool = True  # False: the reply ends after its first tool call
    previous: str | None = None  # the reply that this request goes on from; `messages` are only what is new
    references: Mapping[int, str] = field(default_factory=dict)  # a message's index -> id of the stored reply it is
    instructions: bool = False  # the first message is this request's alone: a request that goes on leaves it out
    extra: Any = None  # the dialect's own: what it must remember of the request to write the answer
    ignored: tuple[str, ...] = ()  # what was asked and has no meaning here, in words: told in a header


def choice_id(id: str, number: int) -> str:
    """The id of the exchange of choice `number`, in an answer with the id `id`."""
    return f"{id}.{number}" if number else id


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What the reply must be: JSON of a schema, or a call of one of some tools; where both are given, either."""

    schema: Mapping[str, Any] | None = None  # {}: any JSON object
    calls: tuple[str, ...] = ()  # names of tools
    field: str = ""  # what the client calls it, for errors

    @property
    def param(self) -> str:
        return self.field or ("tool_choice" if self.schema is None else "response_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """One visible response token, for clients that asked for logprobs."""

    text: str
    raw: Sequence[int]  # utf-8 bytes
    logprob: float
    top: Sequence[tuple[str, Sequence[int], float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, counted as the engine saw them."""

    prompt: int
    completion: int
    reasoning: int
    cached: int = 0  # prompt tokens whose states the engine had


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a reply ended. It exists only once the exchange is durable."""

    reason: FinishReason
    usage: Usage
    stop: str | None = None  # the stop string that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One complete reply of an answer that is not streamed. `id`: of its exchange."""

    id: str
    message: Message
    tokens: Sequence[TokenInfo]  # empty unless logprobs were asked for
    end: End


NOTHING = Delta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What leaves in one write: words that became certain together; the last part has `end`."""

    delta: Delta = NOTHING
    tokens: Sequence[TokenInfo] = ()
    end: End | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is constant over one reply's wire form."""

    id: str
    created: int  # seconds
    model: str
    version: int
    prompt: int = 0  # tokens


class ReplyFailed(OpenClawError):
    """A good request that got no (complete) answer: the engine is gone, or the store would not take the exchange."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
