"""Build store records from resolved turns. Text is tokenised here, once, with the model's chat template.

Shape legend: P prompt tokens, R response tokens.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count
from operator import is_not
from typing import Any

import numpy as np

from openclaw_rl.common import message_hash
from openclaw_rl.common.message_hash import EphemeralMatcher, reaction_signature
from openclaw_rl.errors import RequestError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.control_tokens import remove_marks
from openclaw_rl.render.incremental import (
    MIN_INCREMENTAL_MESSAGES,
    IncrementalRenderer,
    TemplateMismatch,
)
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store import imported_turns
from openclaw_rl.store.imported_turns import DropRecord, ImportOutcome, ReactionRecord, TurnPosition
from openclaw_rl.store.lineage.policy_names import IMPORT_SCOPE
from openclaw_rl.store.rows import from_row, to_json
from openclaw_rl.trajectories.resolve import ResolvedTurn
from openclaw_rl.trajectories.schema import FileFeedback, FileTurn, FileVerdict, TrajectoryRefused
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    Feedback,
    Ids,
    Kind,
    Logprobs,
    Mark,
    Mask,
    Origin,
    Reply,
    Request,
    Span,
    Verdict,
)

log = logging.getLogger("openclaw_rl.data")
BuildProgress = Callable[[float], None]
"""Called with the share of the turns that is built."""
_NO_TRANSIENCE = EphemeralMatcher(())
NOT_TRAINABLE_REASON = Reason(ReasonCode.NOT_TRAINABLE, "its trajectory says so (trainable: false)")
TOO_LONG_REASON = (
    "longer than the model takes: prompt and response have {0} tokens, and it takes {1}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTurn:
    """One turn, ready for the store. `needs_score`: its log-probabilities must still be computed."""

    request: Request
    reply: Reply
    place: TurnPosition
    needs_score: bool


@dataclass(frozen=True, slots=True)
class _TurnTokens:
    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]
    logprobs: Logprobs  # [R] NaN: unknown
    mask: Mask  # [R]
    spans: tuple[Span, ...]
    origin: Origin
    version: int


class TurnBuilder:
    """Builds turns for one model and one head. `key`: the store's secret."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        identity: str,
        key: bytes,
        transient: EphemeralMatcher,
        version: int,
    ) -> None:
        self._renderer = renderer
        self._identity = identity
        self._key = key
        self._transient = transient
        self._version = version

    def build_turns(
        self, planned: Sequence[ResolvedTurn], now: float, step: BuildProgress
    ) -> list[BuiltTurn]:
        """Build the turns of one session, in their order. `now`: default for times missing in the file.

        Raises `TrajectoryRefused` when the chat template rejects a turn.
        """
        try:
            return self._build_all(planned, now, step, IncrementalRenderer(self._renderer))
        except TemplateMismatch:
            log.info(
                "session %s: incremental rendering is not possible, rendering each turn whole",
                planned[0].session,
            )
            return self._build_all(
                planned, now, step, IncrementalRenderer(self._renderer, long=math.inf)
            )

    def _build_all(
        self,
        planned: Sequence[ResolvedTurn],
        now: float,
        step: BuildProgress,
        growing: IncrementalRenderer,
    ) -> list[BuiltTurn]:
        hasher = IncrementalTurnHasher(growing, key=self._key, transient=self._transient)
        out = []
        try:
            for number, p in enumerate(planned, 1):
                out.append(self._build_turn(p, now, hasher))
                step(number / len(planned))
        finally:
            # Also after an error, which incremental rendering may have caused.
            growing.verify_last_turn()
        return out

    def _build_turn(
        self, planned: ResolvedTurn, now: float, hasher: IncrementalTurnHasher
    ) -> BuiltTurn:
        turn = planned.turn
        try:
            marks = hasher.message_marks(planned)
            tokens = self._turn_tokens(planned, hasher.incremental)
            mark = message_hash.mark_message(
                planned.reply,
                index=len(planned.messages),
                chain=marks[-1].chain if marks else message_hash.CHAIN_ROOT,
                key=self._key,
            )
        except RequestError as error:
            raise TrajectoryRefused("chat template", str(error), planned.number) from None
        except (RecursionError, UnicodeEncodeError) as error:
            raise TrajectoryRefused(
                "not JSON", f"cannot be tokenised: {type(error).__name__}", planned.number
            ) from None
        asked = now if turn.at is None else turn.at
        request = Request(
            id=planned.id,
            scope=IMPORT_SCOPE,
            agent=planned.agent,
            user=planned.user,
            session=planned.session,
            kind=turn.type,
            dialect=turn.dialect,
            capture=Capture.REDACTED if turn.redacted else Capture.FULL,
            messages=planned.messages,
            tools=turn.tools,
            template=turn.template or {},
            lessons=turn.lessons if turn.lessons and tokens.origin is Origin.TOKENS else {},
            marks=marks,
            sampling=turn.sampling,
            prompt_ids=tokens.prompt_ids,
            version=tokens.version,
            identity=turn.identity or self._identity
            if tokens.origin is Origin.TOKENS
            else self._identity,
            admitted_at=asked,
            origin=tokens.origin,
        )
        reply = Reply(
            id=planned.id,
            status=turn.status,
            message=planned.reply,
            response_ids=tokens.response_ids,
            logprobs=tokens.logprobs,
            mask=tokens.mask,
            spans=tokens.spans,
            finish_reason=turn.finish if turn.status is ExchangeStatus.DONE else None,
            mark=None if turn.redacted else mark,
            error=turn.error,
            first_token_at=turn.first_token_at,
            finished_at=asked if turn.finished_at is None else turn.finished_at,
        )
        place, wants = self._turn_place(planned, tokens)
        return BuiltTurn(request=request, reply=reply, place=place, needs_score=wants)

    # Tokens.

    def _turn_tokens(self, planned: ResolvedTurn, growing: IncrementalRenderer) -> _TurnTokens:
        turn = planned.turn
        if turn.redacted:
            return _no_tokens(Origin.TOKENS, turn.version)
        if turn.prompt_ids is not None and turn.identity == self._identity:
            return self._recorded_tokens(turn, planned.number)
        # The text does not show how far it got.
        if turn.status is not ExchangeStatus.DONE:
            return _no_tokens(Origin.TEXT, self._version)
        prompt, response = self._tokenise_text(planned, growing)
        r = len(response)
        spans = (Span(start=0, end=r, version=self._version),)
        unknown = np.full(r, np.nan, np.float32)
        mask = np.ones(r, np.bool_)
        return _TurnTokens(prompt, response, unknown, mask, spans, Origin.TEXT, self._version)

    def _check_vocabulary(self, token: int, number: int) -> None:
        """Raise `TrajectoryRefused` if neither the tokenizer nor the weights of the model have the token."""
        size = self._renderer.vocabulary_size
        if token >= size and token >= int(self._renderer.files.config.get("vocab_size", size)):
            raise TrajectoryRefused(
                "token arrays",
                f"token {token} is not in the model's vocabulary of {size}",
                number,
            )

    def _recorded_tokens(self, turn: FileTurn, number: int) -> _TurnTokens:
        assert turn.prompt_ids is not None
        assert turn.response_ids is not None
        assert turn.logprobs is not None
        length = len(turn.response_ids)
        self._check_vocabulary(max((*turn.prompt_ids, *turn.response_ids)), number)
        spans = turn.spans or ()
        if turn.spans is None and length:
            spans = (Span(start=0, end=length, version=turn.version),)
        mask = np.ones(length, np.bool_) if turn.mask is None else np.array(turn.mask, np.bool_)
        return _TurnTokens(
            prompt_ids=np.array(turn.prompt_ids, np.int32),
            response_ids=np.array(turn.response_ids, np.int32),
            # None becomes NaN.
            logprobs=np.array(turn.logprobs, np.float32),
            mask=mask,
            spans=spans,
            origin=Origin.TEXT if turn.off_policy else Origin.TOKENS,
            version=turn.version,
        )

    def _tokenise_text(
        self, planned: ResolvedTurn, growing: IncrementalRenderer
    ) -> tuple[Ids, Ids]:
        """Return (prompt [P], response [R] with its stop token), as the template writes the reply after the prompt."""
        renderer = self._renderer
        turn = planned.turn
        prompt_ids, before, whole = growing.render_turn(
            planned.messages, planned.reply, turn.tools, variables=turn.template or {}
        )
        end = renderer.end_of_turn or str(
            renderer.tokenizer.backend.id_to_token(renderer.stop_token_ids[0])
        )
        after = ""
        if whole.startswith(before) and end in whole[len(before) :]:
            reply, _, after = whole[len(before) :].partition(end)
        elif planned.reply.get("tool_calls"):
            raise TrajectoryRefused(
                "chat template",
                "the template does not write this tool call after its own prompt",
                planned.number,
            )
        else:
            # If the prompt opens reasoning, close it at once.
            opened = renderer.family.opens_thinking(before)
            content = renderer.prepare_message(planned.reply)["content"]
            reply = (f"\n{renderer.family.think_tags[1]}\n\n" if opened else "") + content
        if end in after or end in remove_marks(reply):
            raise TrajectoryRefused(
                "chat template", f"the response holds {end}, which ends every reply", planned.number
            )
        return prompt_ids, renderer.tokenizer.encode(reply + end).copy()

    # Place and outcome.

    def _turn_place(self, planned: ResolvedTurn, tokens: _TurnTokens) -> tuple[TurnPosition, bool]:
        """Return the turn's place in its session, and whether it must be scored."""
        turn = planned.turn
        is_text = tokens.origin is Origin.TEXT
        reason = _stated_reason(turn)
        if reason is None and is_text:
            reason = self._length_reason(len(tokens.prompt_ids) + len(tokens.response_ids))
        may_train = reason is None or reason.code is ReasonCode.UNSCORED
        is_unscored = is_text and bool(np.isnan(tokens.logprobs).any())
        needs_score = is_unscored and may_train and turn.type is Kind.MAIN
        place = TurnPosition(
            turn=planned.id,
            session=planned.session,
            kind=turn.type,
            parent=planned.parent,
            relation="continuation" if planned.parent and turn.id is None else turn.relation,
            relation_of=turn.relation_of,
            unlinked=turn.unlinked,
            unlinked_code=_stated_code(turn.unlinked, turn.unlinked_code),
            untrainable=reason,
        )
        return place, needs_score

    def _length_reason(self, length: int) -> Reason | None:
        limit = self._renderer.context_length
        if limit is None or length <= limit:
            return None
        return Reason(ReasonCode.TOO_LONG, TOO_LONG_REASON.format(length, limit))

    def turn_outcome(self, planned: ResolvedTurn, now: float) -> ImportOutcome:
        """Return reaction, feedback, verdict and drop reason from the file."""
        turn = planned.turn
        dropped = turn.dropped
        if turn.type is Kind.SIDE and dropped is None:
            dropped = DropRecord(
                cause=ReasonCode.SIDE, reason="side traffic: its trajectory says so"
            )
        return ImportOutcome(
            turn=planned.id,
            reaction=self._reaction_record(planned, now),
            feedback=tuple(_to_feedback(planned.id, item) for item in turn.feedback),
            verdict=None if turn.verdict is None else _to_verdict(planned.id, turn.verdict, now),
            dropped=dropped,
        )

    def _reaction_record(self, planned: ResolvedTurn, now: float) -> ReactionRecord | None:
        stated = planned.reaction
        if planned.turn.type is Kind.SIDE or (not planned.reaction_messages and stated is None):
            return None
        marks = message_hash.mark_messages(planned.reaction_messages, self._key, _NO_TRANSIENCE)
        record = ReactionRecord(
            messages=planned.reaction_messages,
            signature=reaction_signature(marks),
            source=None,
            how=imported_turns.IMPORTED,
            at=now,
        )
        if stated is None:
            return record
        return replace(record, source=stated.source, how=stated.how, at=stated.at or now)


def _stated_code(detail: str | None, code: ReasonCode | None) -> ReasonCode | None:
    """Return the code of a reason in a file; `STATED` if the file has the words alone."""
    return None if detail is None else code or ReasonCode.STATED


def _stated_reason(turn: FileTurn) -> Reason | None:
    """Return why the file says that a turn is not trained on, or None."""
    if turn.untrainable:
        return Reason(turn.untrainable_code or ReasonCode.STATED, turn.untrainable)
    return NOT_TRAINABLE_REASON if turn.trainable is False and turn.type is Kind.MAIN else None


def _to_feedback(turn: str, item: FileFeedback) -> Feedback:
    """Return feedback of a file. Keys of the requests that brought it are not in files."""
    return Feedback(
        id=item.id,
        scope=IMPORT_SCOPE,
        target=turn,
        score=item.score,
        comment=item.comment,
        correction=item.correction,
        given_at=item.given_at,
        given_by=item.given_by,
    )


def _to_verdict(turn: str, stated: FileVerdict, now: float) -> Verdict:
    at = now if stated.at is None else stated.at
    # The store sets the revision.
    return from_row(Verdict, stated, turn=turn, revision=0, at=at)


def _no_tokens(origin: Origin, version: int) -> _TurnTokens:
    ids = np.empty(0, np.int32)
    logprobs = np.empty(0, np.float32)
    mask = np.empty(0, np.bool_)
    return _TurnTokens(ids, ids, logprobs, mask, (), origin, version)


class IncrementalTurnHasher:
    """Hashes the messages of turns in order, reusing a common prefix. Short turns (side traffic) are hashed alone."""

    def __init__(
        self, growing: IncrementalRenderer, *, key: bytes, transient: EphemeralMatcher
    ) -> None:
        self.incremental = growing
        self._key = key
        self._transient = transient
        self._previous: ResolvedTurn | None = None
        self._marks: tuple[Mark, ...] = ()

    def message_marks(self, planned: ResolvedTurn) -> tuple[Mark, ...]:
        """Return the hashes of the turn's messages, and keep only the common prefix in the incremental renderer.

        Raises `TemplateMismatch`.
        """
        if len(planned.messages) < MIN_INCREMENTAL_MESSAGES:
            return message_hash.mark_messages(planned.messages, self._key, self._transient)
        same = 0 if self._previous is None else _common_messages(self._previous, planned)
        self.incremental.keep_at_most(same)
        known = self._marks[: bisect_left(self._marks, same, key=lambda m: m.index)]
        self._previous = planned
        self._marks = message_hash.mark_messages(
            planned.messages, self._key, self._transient, known=known, upto=same
        )
        return self._marks


def _common_messages(a: ResolvedTurn, b: ResolvedTurn) -> int:
    """Return the number of common leading messages; 0 if tools or template variables differ."""
    if not _is_same_json((a.turn.tools, a.turn.template), (b.turn.tools, b.turn.template)):
        return 0
    size = min(len(a.messages), len(b.messages))
    # Turns of text share the messages.
    n = next(compress(count(), map(is_not, a.messages, b.messages)), size)
    return next(
        (at for at in range(n, size) if not _is_same_json(a.messages[at], b.messages[at])), size
    )


def _is_same_json(a: Any, b: Any) -> bool:
    """Compare as JSON bytes, because `==` treats 1, 1.0 and True as equal."""
    return to_json(a) == to_json(b)
