"""Requests and replies, independent of the dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.errors import OpenClawError, RequestError
from openclaw_rl.reasons import Reason
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.render.reply_parser import Delta
from openclaw_rl.types import FinishReason, Kind, Message, Sampling

# Characters of a session, agent or user id.
MAX_ID_CHARS = 512
DISK_FULL = "disk_full"
"""Error code of a request that cannot be answered, because its reply cannot be recorded."""
MIN_TEMPERATURE = 0.01
"""Temperatures below this are greedy: dividing logits by less overflows, and the distribution is one token anyway."""


def field_error(
    param: str, problem: str, *, code: str | None = None, status: int = 400
) -> RequestError:
    """Return a client error that names the field `param`."""
    return RequestError(f"{param}: {problem}", param=param, code=code, status=status)


def check_id_length(value: str, name: str) -> str:
    """Return `value`. Raises `RequestError` that names the field `name` if it is too long for an id."""
    if len(value) > MAX_ID_CHARS:
        raise field_error(name, f"expected at most {MAX_ID_CHARS} characters, got {len(value)}.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A decoded and validated request. `sampling.max_tokens` 0: the rest of the context.

    `raw` and `raw_tools` are the bytes of each message and of the tools as the client sent them (empty: unknown).
    They are cache keys for what is computed from a message or from the tools.
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
    # The body's field, in which some clients name session and user.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    # The client's own id of the message that the reply becomes.
    client_message_id: str | None = None
    kind: Kind | None = None
    session_done: bool = False
    with_lessons: bool = False  # also where a request for one version and a side call get none
    size: int = 0  # bytes of the body
    raw: Sequence[bytes] = ()
    raw_tools: bytes = b""
    dialect: str = "chat"
    prompt_field: str = "messages"  # field of the body that an error about the prompt names
    images: Mapping[str, str] = field(
        default_factory=dict
    )  # digest -> data URL of those in `messages`
    id_prefix: str = "chatcmpl-"
    template_variables: Mapping[str, Any] = field(
        default_factory=dict
    )  # variables for the chat template
    # The client's assistant message that the reply continues; `messages` is without it.
    prefix: Message | None = None
    reasoning_effort: str = ""  # for the template, if it uses it
    return_token_ids: bool = False
    n: int = 1  # choices
    constraint: ResponseConstraint | None = None
    parallel_calls: bool = True  # False: the reply ends after its first tool call
    # Id of the reply that this request continues; `messages` has only the new messages.
    previous_id: str | None = None
    references: Mapping[int, str] = field(
        default_factory=dict
    )  # message index -> id of the stored reply it refers to
    # The first message is for this request only: later requests leave it out.
    has_instructions: bool = False
    # Text or token ids to continue, instead of `messages`.
    completion_prompt: str | Sequence[int] | None = None
    further: Sequence[
        ChatRequest
    ] = ()  # requests of the same body; their replies are further choices
    # Private to the dialect: what it needs of the request to write the response.
    dialect_state: Any = None
    untrainable: Reason | None = None  # why the reply must not be trained on
    may_store: bool = True  # by the client: False if it sent `store: false`
    ignored_fields: tuple[
        str, ...
    ] = ()  # descriptions of request fields without effect; sent in a response header
    # How earlier messages were read that cannot be read as they were sent; sent in a response header.
    degraded: tuple[Degradation, ...] = ()
    # Number of the last entries of `messages` that are the client's newest message.
    newest_count: int = 1


def choice_id(id: str, number: int) -> str:
    """Return the exchange id of choice `number` in the response with the id `id`."""
    return f"{id}.{number}" if number else id


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseConstraint:
    """Required form of a reply: JSON of a schema, text of a rule, or a call of a tool; if several are set, any."""

    schema: Mapping[str, Any] | None = None  # {}: any JSON object
    rule: str = ""  # body of a rule in llguidance's Lark
    tool_names: tuple[str, ...] = ()  # names of tools
    request_field: str = ""  # name of the client's field, for errors

    @property
    def param(self) -> str:
        return self.request_field or ("tool_choice" if self.schema is None else "response_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """One visible response token, for clients that request logprobs."""

    text: str
    utf8_bytes: Sequence[int]  # utf-8 bytes
    logprob: float
    top_logprobs: Sequence[tuple[str, Sequence[int], float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Numbers of tokens, as the engine counts them."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int = 0  # prompt tokens that were in the engine's prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEnd:
    """How a reply ended. It is created only after the exchange is durable."""

    finish_reason: FinishReason
    usage: TokenUsage
    stop_string: str | None = None  # the stop string that ended the reply


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedChoice:
    """One complete reply of a response that is not streamed. `id`: the id of its exchange."""

    id: str
    message: Message
    tokens: Sequence[TokenInfo]  # empty unless logprobs were requested
    token_ids: Sequence[int] = ()  # as sampled
    end: ReplyEnd


EMPTY_DELTA = Delta()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """One write of a streamed reply: the output that became certain with one chunk. The last part has `end`."""

    delta: Delta = EMPTY_DELTA
    tokens: Sequence[TokenInfo] = ()
    token_ids: Sequence[int] = ()  # as sampled, if they were requested
    end: ReplyEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHeader:
    """The fields that are the same in every event of one reply."""

    id: str
    created: int  # seconds
    model: str
    version: int
    prompt_tokens: int = 0  # tokens
    prompt_ids: Sequence[int] | None = None  # if they were requested
    lessons: Sequence[str] = ()  # ids of those in the prompt
    withdrawn: Sequence[str] = ()  # ids of lessons for this prompt that cost correctness
    ignored: Sequence[str] = ()  # descriptions of what has no effect in the request
    degraded: Sequence[Degradation] = ()  # what was changed to show the history


class ReplyFailed(OpenClawError):
    """A valid request got no complete reply: the engine is gone, or the store refused the exchange."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
