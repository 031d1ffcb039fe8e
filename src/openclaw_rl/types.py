"""The data types that the four stages exchange.

Shapes: P prompt tokens, R response tokens. Times are seconds since the epoch. Log-probabilities are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.reasons import Reason, ReasonCode

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]
States = NDArray[np.float32]
"""Hidden states of a model, pooled over spans of tokens."""
Mask = NDArray[np.bool_]
Convention = Literal["scaled", "processed", "raw"]
"""Convention of an engine's log-probabilities, for logits at temperature T (natural logarithms, at every position).
scaled: log softmax(logits / T), before top-p, top-k, min-p and penalties. processed: log softmax of the sampling
distribution, after temperature, penalties, bias and truncation; equals scaled if only T is set.
raw: log softmax(logits), independent of T; equals scaled only at T = 1."""
# One chat message as the client sent it: a JSON object, with unknown keys kept.
Message = Mapping[str, Any]


class Kind(StrEnum):
    """Main traffic may be trained on; side traffic (titles, heartbeats, memory flushes, evaluations) never is."""

    MAIN = "main"
    SIDE = "side"
    # Nobody read the reply: the trainer asked an earlier prompt again (`practice/`).
    PRACTICE = "practice"


class Capture(StrEnum):
    """How much of an exchange the store keeps. Redacted: hashes for linking only, so never trained on."""

    FULL = "full"
    REDACTED = "redacted"


class Origin(StrEnum):
    """Source of an exchange that was not served. All are off-policy: no version of this policy sampled the reply."""

    TOKENS = "tokens"  # imported with the tokens and log-probabilities that another home recorded
    # Imported as text and tokenised here; `version` is the one that scored the tokens.
    TEXT = "text"
    # Practice: sampled by the frozen base, whose prompt has the text of a lesson.
    TEACHER = "teacher"
    # Practice: sampled by the frozen base under a wish that contradicts the lesson.
    CONTRAST = "contrast"


class ExchangeStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class TurnState(StrEnum):
    SERVED = "served"
    CLOSED = "closed"
    JUDGED = "judged"
    DROPPED = "dropped"


TURN_TRANSITIONS: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.SERVED: frozenset({TurnState.CLOSED, TurnState.DROPPED}),
    TurnState.CLOSED: frozenset({TurnState.CLOSED, TurnState.JUDGED, TurnState.DROPPED}),
    TurnState.JUDGED: frozenset({TurnState.CLOSED, TurnState.DROPPED}),
    TurnState.DROPPED: frozenset({TurnState.CLOSED}),
}
"""The legal state transitions of a turn. New evidence closes a closed, judged or dropped turn again."""


class PolicyState(StrEnum):
    CANDIDATE = "candidate"
    LIVE = "live"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of a reply, and the convention of its log-probabilities."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 0
    min_tokens: int = 0  # before them, no stop token is sampled and no stop string ends the reply
    stop: tuple[str, ...] = ()
    convention: Convention = "scaled"
    # Llguidance Lark that constrains the reply; the logprobs are the unconstrained ones.
    grammar: str | None = None

    def untrainable_reason(self) -> Reason | None:
        """Return why such tokens cannot be trained on, or None: μ must be the full softmax at `temperature`."""
        if self.temperature <= 0:
            return Reason(
                ReasonCode.GREEDY, "greedy sampling (temperature 0) has no sampling distribution"
            )
        if self.convention == "raw" and self.temperature != 1:
            detail = f"raw log-probabilities at temperature {self.temperature:g}: they are those of temperature 1"
            return Reason(ReasonCode.RAW_LOGPROBS, detail)
        cuts = {
            ReasonCode.TOP_P: (self.top_p, self.top_p < 1, "1"),
            ReasonCode.TOP_K: (self.top_k, self.top_k > 0, "0 (all)"),
            ReasonCode.MIN_P: (self.min_p, self.min_p > 0, "0"),
            ReasonCode.MIN_TOKENS: (self.min_tokens, self.min_tokens > 0, "0"),
        }
        for code, (value, is_cut, free) in cuts.items():
            if is_cut:
                return Reason(
                    code, f"{code.value} {value:.10g} cuts the distribution; {free} is needed"
                )
        if self.presence_penalty or self.frequency_penalty:
            return Reason(ReasonCode.PENALTIES, "penalties shift the distribution; 0 is needed")
        if self.logit_bias:
            return Reason(
                ReasonCode.LOGIT_BIAS, "logit_bias shifts the distribution; none is needed"
            )
        if self.grammar is not None:
            detail = "a forced format or tool call cuts the distribution; a free reply is needed"
            return Reason(ReasonCode.FORCED_FORMAT, detail)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Response tokens [start, end) were sampled by `version`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The hashes of one non-ephemeral message, as linking needs them (see `common/message_hash.py`)."""

    index: int  # position in the request's messages
    role: str
    own: bytes  # 16 bytes: keyed hash of the canonical message
    chain: bytes  # 16 bytes: keyed hash of the history up to and including this message
    distinctive: bool  # its text has 24 characters or more


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call, as admitted."""

    id: str  # "chatcmpl-..."; the client sees it
    scope: str  # id of the API key; exchanges are never linked across keys
    agent: str = ""
    user: str = ""
    session: str | None = None  # X-Session-Id, when sent
    kind: Kind | None = None  # X-Turn-Type, when sent
    session_done: bool = False
    episode: str | None = None  # the ticket of this episode asked for it
    dialect: str = "chat"
    capture: Capture = Capture.FULL
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    template: Mapping[str, Any] = field(
        default_factory=dict
    )  # chat template variables from the client
    # Exchange that the client continues by id; `messages` includes its text.
    previous: str | None = None
    client_message_id: str | None = (
        None  # the client's own id of the message that the reply becomes
    )
    marks: tuple[Mark, ...]
    sampling: Sampling
    prompt_ids: Ids  # [P]
    lessons: Mapping[str, str] = field(
        default_factory=dict
    )  # id -> text of those in `prompt_ids`, not in `messages`
    version: int  # the policy version that generates the reply
    identity: str  # hash of tokenizer, template, special ids and base weights
    admitted_at: float
    untrainable: Reason | None = None  # why its client forbids training on it; kept in the turn
    origin: Origin | None = None  # None: served here


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Result of the call. For FAILED and CANCELLED the arrays hold the tokens sampled until then."""

    id: str
    status: ExchangeStatus
    message: Message  # the assistant message as delivered
    response_ids: Ids  # [R] as sampled, the stop token included
    logprobs: Logprobs  # [R]
    mask: Mask  # [R] False for tokens after a stop string; these are never trained on
    spans: tuple[Span, ...]
    finish_reason: FinishReason | None
    mark: Mark | None  # of `message`, chained on the request's last mark
    error: str | None = None
    first_token_at: float | None = None
    finished_at: float

    def __post_init__(self) -> None:
        r = len(self.response_ids)
        if (sizes := (len(self.logprobs), len(self.mask))) != (r, r):
            raise ValueError(
                "reply {}: {} response ids but {} logprobs and {} mask entries".format(
                    self.id, r, *sizes
                )
            )
        if self.spans and (self.spans[0].start != 0 or self.spans[-1].end != r):
            raise ValueError(
                f"reply {self.id}: version spans cover {self.spans[0].start}..{self.spans[-1].end} of {r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One model call: the request, and its reply once the call has ended."""

    seq: int  # order of admission in the store
    request: Request
    reply: Reply | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Explicit feedback on a reply (`POST /v1/feedback`)."""

    id: str
    scope: str
    target: str  # exchange id
    score: int | None = None  # +1, 0, -1
    comment: str | None = None  # free text; evidence for the judge
    correction: str | None = None  # how the reply should have been; becomes a hint
    given_at: float
    given_by: str | None = None  # who gave it, as its client names people
    # Of the request that brought it: the same key brings it once.
    idempotency_key: str | None = None
    body_digest: bytes | None = None  # 16 bytes: of that request's body
    retracted_at: float | None = None  # when it was taken back; it counts no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """Feedback that is taken back (`DELETE /v1/feedback/{id}`)."""

    ids: tuple[str, ...]
    scope: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """All messages that answered the turn, and explicit feedback on it. `revision` counts the changes from 1."""

    turn: str
    revision: int
    messages: tuple[Message, ...]
    feedback: tuple[Feedback, ...] = ()
    source: str | None  # the exchange whose history has `messages`
    how: str  # "exact" | "tool_call" | "sequence" | "distinctive" | "feedback" | "behaviour" | "imported"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One answer of a judge. An unusable one (time-out, unparsable) has score None and an error."""

    score: int | None
    hint: str | None = None
    reason: str = ""
    error: str | None = None
    # A hint that gives the answer away, which the verdict's hints leave out.
    fact: str | None = None
    # The person's words from which the hint, or the fact, follows.
    words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judge's score of a reaction. `score` None: it abstained. A judge that fails gives no verdict."""

    turn: str
    revision: int  # of the reaction that was judged
    judge: str
    score: int | None
    votes: tuple[Vote, ...] = ()
    hints: tuple[str, ...] = ()
    explicit: bool = False
    weight: float = 1.0  # in (0, 1]: how much the score counts in training
    reason: str = ""
    reason_code: ReasonCode | None = None  # why there is no score, if votes decided it
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An exchange with its training life cycle."""

    id: str  # the exchange's id
    session: str
    parent: str | None  # the turn before it in the same conversation
    state: TurnState
    reason: str | None = None  # why it was dropped, as text for a person
    cause: ReasonCode | None = None  # the code of `reason`
    untrainable: str | None = None  # why it can never be trained on, although it may be judged
    untrainable_code: ReasonCode | None = None
    relation: str = "fresh"  # fresh | continuation | regeneration | retry | sibling
    relation_of: str | None = None
    unlinked: str | None = None  # why no earlier turn was found for its history
    unlinked_code: ReasonCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeInput:
    """The input of a judge."""

    turn: str
    messages: Sequence[Message]  # the conversation before the reply
    reply: Message
    reaction: Reaction
    observed: frozenset[str] = (
        frozenset()
    )  # what the person did with the reply (`store/behaviour/observations.py`)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStep:
    """One turn of an episode with a known reward, and the rewards of its group that credit compares with it."""

    group: str
    episode: str
    step: int | None  # from 0; None: a branch that the end of the episode does not follow
    reward: float  # of the whole episode
    step_reward: float | None = None  # of this step alone
    rewards: tuple[float, ...]  # known rewards of the group's episodes, this one included
    step_rewards: tuple[float, ...] = ()  # of the group's episodes at this step, this one included

    def __post_init__(self) -> None:
        for own, group in ((self.reward, self.rewards), (self.step_reward, self.step_rewards)):
            if own is not None and (own not in group or not np.all(np.isfinite(group))):
                raise ValueError(
                    f"episode {self.episode}: expected finite rewards with {own} among them, got {group}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """One turn of the training queue, with everything needed to build a `Sample`."""

    exchange: Exchange
    turn: Turn
    verdict: Verdict
    earlier_uses: int
    episode: EpisodeStep | None = None  # None: a conversation
    common_weight: float = 1.0  # of its score in what is common to all people, from 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """A version as an engine loads it: the adapter's folder and its digest. `path` None means the base."""

    version: int
    path: str | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One version of the weights, with its parent."""

    version: int
    name: str = "default"  # the policy that it is a version of: one for all, or one for each agent, user or key
    parent: int | None
    state: PolicyState
    path: str | None  # folder with the PEFT adapter, optimizer and trainer state; None for the base
    digest: str  # sha256 over the folder's weight files; "" for the base
    files: Mapping[str, str | None] = field(default_factory=dict)  # see `policy_digest.FileDigests`
    damage: str | None = None  # how the folder's files differ from `files`, if they do
    base: str  # path or hub id of the base weights
    identity: str
    memory: Mapping[str, Any] = field(
        default_factory=dict
    )  # baselines and moving averages, kept between steps
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None  # why it was rejected or rolled back
    reason_code: ReasonCode | None = None
    created_at: float

    @property
    def ref(self) -> PolicyRef:
        return PolicyRef(version=self.version, path=self.path, digest=self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBatch:
    """A batch that an undo trains on again."""

    repeats: int
    """The undone version that was trained on it."""
    turns: tuple[str, ...]
    """In the order of the batch."""
    place: int = 0
    """Its place in the store's list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Record that one policy was trained on one turn."""

    policy: int
    turn: str
    number: int  # 1 for the first use of this turn anywhere, 2 for a replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The exclusive right to a job. A holder with an old epoch or an expired lease cannot publish."""

    name: str
    holder: str
    epoch: int
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the append-only event log that watchers follow."""

    seq: int
    kind: str  # e.g. "exchange.admitted", "turn.closed", "policy.live"
    ref: str
    data: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation call to an engine."""

    id: str
    version: int
    prompt_ids: Ids  # [P]
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    top_logprobs: int = 0  # K alternatives to report at each position
    background: bool = False  # no person waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """A text whose hidden states in the base model are read. No token is sampled."""

    ids: Ids  # [P]
    depths: tuple[float, ...]  # [K] share of the layers below the one that is read, in (0, 1]
    spans: tuple[tuple[int, int], ...]  # [S] first token and end; the states of a span are averaged
    shared: int = 0  # tokens at the beginning that later requests repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of an engine's stream: at least one token, or the finish, which may come with the last token."""

    token_ids: tuple[int, ...]  # [n]
    logprobs: tuple[float, ...]  # [n] log softmax(logits / temperature)
    top: tuple[
        tuple[tuple[int, float], ...], ...
    ] = ()  # [n][K] (token id, logprob), when asked for
    finish: str | None = None  # "stop" | "length"
    cached: int = 0  # set on one chunk: prompt tokens found in the prefix cache
