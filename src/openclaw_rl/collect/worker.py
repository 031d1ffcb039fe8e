"""Collect worker: reads the event log of exchanges, links turns and writes their reactions."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import Connection

from openclaw_rl.collect.behaviour import find_observations
from openclaw_rl.collect.link import ReactionLink, RequestLink, link_request
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.steady_clock import GuardedWallClock
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.errors import DamagedRow, StoreError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import CollectConfig, Config, SignalsConfig
from openclaw_rl.store import events, exchanges, heartbeats, reactions, turn_states, turns
from openclaw_rl.store.behaviour.observations import ABANDONED, abandoned_turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import settlement
from openclaw_rl.store.episodes.episodes import ENDED_EVENT, has_expired, void_expired
from openclaw_rl.store.episodes.groups import complete_group, open_groups
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.store.feedback.records import GIVEN_EVENT, RETRACTED_EVENT
from openclaw_rl.store.turn_states import degenerate_reason
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.types import Event, Exchange, Kind

log = logging.getLogger("openclaw_rl.collect")

CURSOR_NAME = "collect"
EVENT_KINDS = (
    "exchange.admitted",
    "exchange.finished",
    GIVEN_EVENT,
    RETRACTED_EVENT,
    ENDED_EVENT,
)
EVENT_BATCH = 256
# Seconds; a finished reply waits for the write lock meanwhile.
LONGEST_TRANSACTION = 0.005
OVERDUE_BATCH = 500
WRITE_BATCH = 32
"""Turns or episodes that are ended in one transaction: after a pause there are hundreds, and replies wait meanwhile."""


class Collector:
    """Processes events in order. An interrupted step is repeated from the cursor."""

    def __init__(
        self,
        store: Store,
        config: CollectConfig,
        signals: SignalsConfig | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`signals`: which behaviour is observed; None: none. `clock`: seconds since the epoch; by default a wall clock
        whose jumps drop no turn too early."""
        self._store = store
        self._signals = signals
        self._session_timeout = config.session_timeout
        self._clock = clock or GuardedWallClock(config.session_timeout)
        self._classifier = TrafficClassifier(
            config.side_patterns, config.client_prompt_patterns, known_clients=config.known_clients
        )
        self.linked_count = self.reaction_count = self.dropped_count = 0
        self._has_more = True
        self._sweep_at = 0.0
        self._attempts = AttemptLog(store, "collect")
        # Number of events that are processed one by one, because a worker died on one.
        self._single_events = 0

    def run_once(self) -> bool:
        """Run one iteration: new events, and from time to time the overdue turns. Returns whether there were events."""
        if self._store.has_changed():
            self._has_more = True
        # Stays so if the step fails.
        if self._has_more:
            self._has_more = self.step() > 0
        if time.monotonic() >= self._sweep_at:
            shortest = min(
                self._session_timeout, self._signals.abandoned_after if self._signals else math.inf
            )
            self._sweep_at = time.monotonic() + min(5.0, shortest / 4)
            self.end_expired_episodes(self._clock())
            self.observe_abandoned(self._clock())
            self.drop_overdue(self._clock())
        return self._has_more

    def status_note(self) -> str:
        return f"{self.linked_count} linked, {self.reaction_count} answered, {self.dropped_count} dropped"

    def step(self, limit: int = EVENT_BATCH) -> int:
        """Process up to `limit` events, several in one transaction. Returns their number."""
        with self._store.read() as conn:
            first = events.read_after(conn, events.read_cursor(conn, CURSOR_NAME), 1, EVENT_KINDS)
        if not first:
            return 0
        ref = str(first[0].seq)
        deaths = self._attempts.begin([ref]).get(ref, 0)
        if deaths:
            # It may have been any event of the last transaction.
            self._single_events = EVENT_BATCH
        elif self._single_events:
            self._single_events -= 1
        with self._attempts.interrupted_by(StoreError), self._store.write(durable=False) as conn:
            at = events.read_cursor(conn, CURSOR_NAME)
            read = events.read_after(conn, at, 1 if self._single_events else limit, EVENT_KINDS)
            if read[:1] == first and (reason := self._attempts.give_up(conn, ref, deaths)):
                self._set_aside(conn, first[0], reason)
                events.move_cursor(conn, CURSOR_NAME, first[0].seq)
                return 1
            count = self._process_events(conn, read)
            self._attempts.end(conn)
        return count

    def _process_events(self, conn: Connection, read: Sequence[Event]) -> int:
        """Process events until `LONGEST_TRANSACTION` has passed. Returns their number."""
        deadline = time.monotonic() + LONGEST_TRANSACTION
        count = 0
        for event in read:
            self._process_event(conn, event)
            events.move_cursor(conn, CURSOR_NAME, event.seq)
            count += 1
            if time.monotonic() >= deadline:
                break
        return count

    def _process_event(self, conn: Connection, event: Event) -> None:
        """Link a request; or record feedback, which takes effect when the reply that it refers to has ended."""
        if event.kind == "exchange.admitted":
            try:
                exchange = exchanges.get(conn, event.ref)
            except DamagedRow as error:
                self._set_aside(conn, event, Reason(ReasonCode.DAMAGED, str(error)))
                return
            assert exchange is not None, (
                f"event {event.seq} names exchange {event.ref}, which is not in the store"
            )
            index = ExchangeIndex(conn, self._store.secret)
            decided = link_request(exchange.request, exchange.seq, index, self._classifier)
            self._apply_link(conn, exchange, decided, index)
            self.linked_count += 1
            _log_link(exchange.request.id, decided)
        elif event.kind == ENDED_EVENT:
            try:
                settlement.settle_episode(conn, event.ref, at=event.at)
            except DamagedRow as error:
                self._set_aside(conn, event, Reason(ReasonCode.DAMAGED, str(error)))
        elif event.kind == RETRACTED_EVENT:
            target = _turn_of(event)
            if target is not None:
                reactions.record_retraction(conn, target, event.ref, event.at)
        else:
            target = _turn_of(event)
            if target is not None:
                self.reaction_count += reactions.record_pending_feedback(conn, target, event.at)

    def _set_aside(self, conn: Connection, event: Event, reason: Reason) -> None:
        log.warning("event %d (%s %s): %s", event.seq, event.kind, event.ref, reason)
        if event.kind == ENDED_EVENT:
            settlement.set_aside_episode(conn, event.ref, reason.detail, at=event.at)
        turn = _turn_of(event)
        if turn is not None:
            turns.set_aside(conn, turn, reason, at=event.at)

    def end_expired_episodes(self, now: float) -> int:
        """End the episodes that expired without an outcome, and complete the expired groups. Returns their number.

        After a pause, there may be many: each transaction ends a few episodes, or completes one group.
        """
        with self._store.read() as conn:
            if not has_expired(conn, now):
                return 0
        count = 0
        while ended := self._void_some(now):
            count += ended
        with self._store.read() as conn:
            groups = open_groups(conn, now)
        for group in groups:
            with self._store.write(durable=False) as conn:
                count += complete_group(conn, group, now)
        return count

    def _void_some(self, now: float) -> int:
        with self._store.write(durable=False) as conn:
            return void_expired(conn, now, limit=WRITE_BATCH)

    def observe_abandoned(self, now: float) -> int:
        """Close the last turns of abandoned conversations, if that counts as evidence. Returns their number."""
        if self._signals is None or not self._signals.abandoned:
            return 0
        with self._store.read() as conn:
            abandoned = abandoned_turns(conn, now - self._signals.abandoned_after, OVERDUE_BATCH)
        for part in _split(abandoned):
            with self._store.write(durable=False) as conn:
                for turn in part:
                    reactions.record_observation(conn, turn, ABANDONED, source=None, at=now)
        return len(abandoned)

    def drop_overdue(self, now: float) -> int:
        """Drop turns that have had no reaction for `session_timeout` seconds. Returns their number."""
        with self._store.read() as conn:
            late = reactions.overdue_turns(conn, now - self._session_timeout, OVERDUE_BATCH)
        reason = f"no reaction within {_format_duration(self._session_timeout)}"
        dropped = 0
        for part in _split(late):
            with self._store.write(durable=False) as conn:
                dropped += turn_states.drop_all(conn, part, ReasonCode.TIMEOUT, reason, at=now)
        self.dropped_count += dropped
        if late:
            log.debug("%d turns without a reaction were dropped: %s", dropped, ", ".join(late))
        return dropped

    def _apply_link(
        self, conn: Connection, exchange: Exchange, decided: RequestLink, index: ExchangeIndex
    ) -> None:
        request = exchange.request
        kind = reactions.set_position(
            conn,
            request.id,
            session=decided.session,
            parent=decided.parent,
            kind=decided.kind,
            relation=decided.relation,
            relation_of=decided.relation_of,
            unlinked=decided.unlinked,
        )
        for answer in decided.reaction_links:
            self._record_reaction(conn, exchange, answer)
        at = request.admitted_at
        if kind is Kind.MAIN and self._signals is not None and request.episode is None:
            for turn, signal in find_observations(conn, exchange, decided, index, self._signals):
                reactions.record_observation(conn, turn, signal, source=request.id, at=at)
        if kind is Kind.SIDE:
            turn_states.drop(
                conn, request.id, ReasonCode.SIDE, f"side traffic: {decided.why_side}", at=at
            )
        if request.episode is not None and settlement.is_settled(conn, request.episode):
            turn_states.drop(conn, request.id, ReasonCode.EPISODE_ENDED, settlement.TOO_LATE, at=at)
        if request.session_done:
            ended = reactions.served_in_session(conn, request.scope, decided.session)
            self.dropped_count += turn_states.drop_all(
                conn, ended, ReasonCode.SESSION_DONE, "the session ended without a reaction", at=at
            )

    def _record_reaction(self, conn: Connection, exchange: Exchange, answer: ReactionLink) -> None:
        request = exchange.request
        at = request.admitted_at
        if answer.redacted:
            reason = "turn or reaction was stored without its text (redacted): it cannot be judged"
            turn_states.drop(conn, answer.turn, ReasonCode.REDACTED, reason, at=at)
        elif not (answer.was_side and _is_degenerate(conn, answer.turn)):
            messages = [request.messages[i] for i in answer.messages]
            if answer.spoken is not None:
                messages = [{"role": "user", "content": answer.spoken}]
            self.reaction_count += reactions.record_reaction(
                conn,
                answer.turn,
                messages=messages,
                signature=answer.signature,
                source=request.id,
                how=answer.how,
                at=at,
                was_side=answer.was_side,
            )
        reason = f"superseded: the conversation continued with another reply ({answer.turn})"
        self.dropped_count += turn_states.drop_all(
            conn, answer.superseded, ReasonCode.SUPERSEDED, reason, at=at
        )


def _log_link(request: str, decided: RequestLink) -> None:
    answered = [f"{link.turn} ({link.how})" for link in decided.reaction_links]
    reacts = (
        f"reacts to {', '.join(answered)}"
        if answered
        else f"no reaction ({decided.unlinked or decided.relation})"
    )
    log.debug("%s: %s, session %s, %s", request, decided.kind.value, decided.session, reacts)


def _turn_of(event: Event) -> str | None:
    """Return the turn that the event is about; None for feedback whose data are damaged, and for episodes."""
    if event.kind == ENDED_EVENT:
        return None
    is_feedback = event.kind in (GIVEN_EVENT, RETRACTED_EVENT)
    return event.data.get("target") if is_feedback else event.ref


def _is_degenerate(conn: Connection, turn: str) -> bool:
    """Return whether a reply is degenerate or damaged. Replies of side calls are not checked when they end."""
    exchange = exchanges.get_readable(conn, [turn]).get(turn)
    return (
        exchange is None or exchange.reply is None or degenerate_reason(exchange.reply) is not None
    )


def _split(turns_: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the turns in parts that are written in one transaction each."""
    for start in range(0, len(turns_), WRITE_BATCH):
        yield turns_[start : start + WRITE_BATCH]


def _format_duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the collect worker until `stop` is set. Raises `StoreError` if file or disk fail.

    Consumes: events of exchanges and feedback, through a durable cursor.
    Produces: links, reactions and state transitions of turns, in one transaction with the cursor.
    Waits for: commits of other connections, checked every `collect.poll` seconds, and timeouts of turns.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    collector = Collector(store, config.collect, config.judge.signals)
    try:
        beat = heartbeats.heartbeat_writer(store, "collect", collector.status_note)
        await run_worker_loop(collector.run_once, beat, stop, poll=config.collect.poll)
    finally:
        store.close()
