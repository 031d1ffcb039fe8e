"""Why something happened or did not, as data: a code to decide by, and a detail to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Why a turn was dropped, not trained on or not linked, a version is not used, or a judge abstained.

    Also why evidence of a person is set aside.
    """

    # A turn was dropped.
    CANCELLED = "cancelled"
    FAILED = "failed"
    DEGENERATE = "degenerate"
    SIDE = "side"
    REDACTED = "redacted"
    SESSION_DONE = "session done"
    TIMEOUT = "timeout"
    SUPERSEDED = "superseded"
    TAKEN_BACK = "taken back"  # by an undo, or with the lesson that it practised
    # By a rollback of the version that was trained on it; also of a version.
    ROLLED_BACK = "rolled back"
    PROMOTED = "promoted"  # by a promotion of another version; also of a version
    SET_ASIDE = "set aside"  # workers died on it
    DAMAGED = "damaged"  # also of a version
    EPISODE_ENDED = "episode ended"
    # Its tokens have no log-probabilities under the full softmax.
    GREEDY = "greedy"
    RAW_LOGPROBS = "raw logprobs"
    TOP_P = "top_p"
    TOP_K = "top_k"
    MIN_P = "min_p"
    MIN_TOKENS = "min_tokens"
    PENALTIES = "penalties"
    LOGIT_BIAS = "logit_bias"
    FORCED_FORMAT = "forced format"
    # Its request rules training out.
    COMPLETION = "text completion"
    NOT_STORED = "not stored"  # store=false
    CONTINUED = "continued message"
    IMAGES = "images"
    CONTROL_TOKEN = "control token"
    UNREAD_CALLS = "unread calls"  # nobody reads the calls that the chat template writes
    HELD_OUT = "held out"
    # Of an imported turn.
    UNSCORED = "unscored"
    NOT_TRAINABLE = "not trainable"  # its trajectory says so
    TOO_LONG = "too long"
    # Words without a code: of a trajectory, another trainer or an earlier version.
    STATED = "stated"
    # The trainer or its method cannot use it.
    NO_REPLY = "no reply"
    NO_TOKEN = "no token"
    OTHER_MODEL = "other model"
    OTHER_TEMPERATURE = "other temperature"
    TOO_STALE = "too stale"
    NO_SIGNAL = "no signal"
    TRUNCATED = "truncated"
    HINT_UNUSABLE = "hint unusable"
    NO_EPISODE = "no episode"
    OTHER_BRANCH = "other branch"
    EQUAL_REWARDS = "equal rewards"
    FEW_REWARDS = "few rewards"
    VOID_EPISODE = "void episode"
    INVALID_VALUES = "invalid values"
    NO_GRADIENT = "no gradient"
    REJECTED_ALONE = "rejected alone"  # a step on this turn alone was rejected
    # A step or a version was rejected; the first one also of a turn.
    CANNOT_TRAIN = "cannot train"  # the trainer raised or died
    NOT_FINITE = "not finite"
    GRADIENT_NORM = "gradient norm"
    BASE_KL = "base kl"
    STEP_KL = "step kl"
    ENTROPY = "entropy"
    JUNK = "junk"
    OUTLIER = "outlier"
    CONTRADICTION = "contradiction"  # of its verdicts with what the head has learned
    ECHO = "echo"  # of the text of a lesson, in answers to other questions
    WORSE = "worse"  # than the head, by the gate's evidence or the canary
    BROKEN = "broken"  # it cannot answer, or a trainer died on its examination
    OUTDATED = "outdated"  # it can no longer become the head
    SATISFACTION = "satisfaction fell"
    # No earlier turn was found for the history of a request.
    NOT_OURS = "not ours"
    OTHER_NAME = "other name"  # of session, user or agent
    OTHER_TEXT = "other text"  # the client replaced the reply
    SHORT_TEXT = "short text"
    AMBIGUOUS = "ambiguous"
    NO_TIE = "no tie"
    QUOTED = "quoted"
    UNKNOWN_TURN = "unknown turn"  # the one before a summary
    MERGED_CALLS = "merged calls"  # of several replies, in one message
    # A judge gives no score.
    NO_EVIDENCE = "no evidence"  # it has read that the reaction says nothing of the reply
    UNREADABLE = "unreadable"  # its answers could not be read
    TIE = "tie"
    NO_MAJORITY = "no majority"
    # Evidence of a person is set aside in what is common to all.
    CONTRADICTS_JUDGE = "contradicts the judge"
    ONE_SIDED = "one-sided"  # scores every reply the same, whatever the judge says
    CHANGES_SIDES = "changes sides"
    FLOODS = "floods"


TAKEN_BACK_CODES = frozenset({ReasonCode.TAKEN_BACK, ReasonCode.ROLLED_BACK, ReasonCode.PROMOTED})
"""Codes of turns that were dropped for good after they may have been trained on."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A code to decide and to group by, and the text for people."""

    code: ReasonCode
    detail: str

    def __str__(self) -> str:
        return self.detail
