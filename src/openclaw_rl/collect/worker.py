"""Collect worker: reads the event log of exchanges, links turns and writes their reactions."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby

from sqlalchemy import Connection

from openclaw_rl.collect.link import ReactionLink, RequestLink, link_request
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.settings.load import CollectConfig, Config
from openclaw_rl.store import events, exchanges, heartbeats, reactions, turn_states
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.store.turn_states import DropReason, degenerate_reason
from openclaw_rl.types import Event, Exchange, Kind

CURSOR_NAME = "collect"
EVENT_KINDS = ("exchange.admitted", "exchange.finished", "feedback.given")
EVENT_BATCH = 256
OVERDUE_BATCH = 500


class Collector:
    """Processes events in order. An interrupted step is repeated from the cursor."""

    def __init__(self, store: Store, config: CollectConfig) -> None:
        self._store = store
        self._session_timeout = config.session_timeout
        self._classifier = TrafficClassifier(
            config.side_patterns, config.client_prompt_patterns, known_clients=config.known_clients
        )
        self.linked_count = self.reaction_count = self.dropped_count = 0
        self._has_more, self._sweep_at = True, 0.0

    def run_once(self) -> bool:
        """Run one iteration: new events, and from time to time the overdue turns. Returns whether there were events."""
        self._has_more = (self._store.has_changed() or self._has_more) and self.step() > 0
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + min(5.0, self._session_timeout / 4)
            self.drop_overdue(time.time())
        return self._has_more

    def write_heartbeat(self) -> None:
        note = f"{self.linked_count} linked, {self.reaction_count} answered, {self.dropped_count} dropped"
        heartbeats.write_heartbeat(self._store, "collect", note)

    def step(self, limit: int = EVENT_BATCH) -> int:
        """Process up to `limit` events. Returns their number."""
        with self._store.read() as conn:
            at = events.read_cursor(conn, CURSOR_NAME)
            found = events.read_after(conn, at, limit, EVENT_KINDS)
        for admitted, group in groupby(found, key=lambda e: e.kind == "exchange.admitted"):
            for part in [[event] for event in group] if admitted else [list(group)]:
                if not (self._process_admitted(part[0], at) if admitted else self._process_later_events(part, at)):
                    return len(found)
                at = part[-1].seq
        return len(found)

    def drop_overdue(self, now: float) -> int:
        """Drop turns that have had no reaction for `session_timeout` seconds. Returns their number."""
        with self._store.read() as conn:
            late = reactions.overdue_turns(conn, now - self._session_timeout, OVERDUE_BATCH)
        if not late:
            return 0
        with self._store.write() as conn:
            n = turn_states.drop_all(
                conn, late, DropReason.TIMEOUT, f"no reaction within {_format_duration(self._session_timeout)}", at=now
            )
        self.dropped_count += n
        return n

    def _process_admitted(self, event: Event, after: int) -> bool:
        """Link one request. Returns False, without changes, if another collector has moved the cursor from `after`."""
        with self._store.read() as conn:
            exchange = exchanges.get(conn, event.ref)
            assert exchange is not None, f"event {event.seq} names exchange {event.ref}, which is not in the store"
            decided = link_request(
                exchange.request, exchange.seq, ExchangeIndex(conn, self._store.secret), self._classifier
            )
        with self._store.write() as conn:
            if events.read_cursor(conn, CURSOR_NAME) != after:
                return False
            self._apply_link(conn, exchange, decided)
            events.move_cursor(conn, CURSOR_NAME, event.seq)
        self.linked_count += 1
        return True

    def _apply_link(self, conn: Connection, exchange: Exchange, decided: RequestLink) -> None:
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
        if kind is Kind.SIDE:
            turn_states.drop(conn, request.id, DropReason.SIDE, f"side traffic: {decided.why_side}", at=at)
        if request.session_done:
            ended = reactions.served_in_session(conn, request.scope, decided.session)
            self.dropped_count += turn_states.drop_all(
                conn, ended, DropReason.SESSION_DONE, "the session ended without a reaction", at=at
            )

    def _record_reaction(self, conn: Connection, exchange: Exchange, answer: ReactionLink) -> None:
        request = exchange.request
        at = request.admitted_at
        if answer.redacted:
            why = "turn or reaction was stored without its text (redacted): it cannot be judged"
            turn_states.drop(conn, answer.turn, DropReason.REDACTED, why, at=at)
        elif not (answer.was_side and _is_degenerate(conn, answer.turn)):
            self.reaction_count += reactions.record_reaction(
                conn,
                answer.turn,
                messages=[request.messages[i] for i in answer.messages],
                signature=answer.signature,
                source=request.id,
                how=answer.how,
                at=at,
                was_side=answer.was_side,
            )
        why = f"superseded: the conversation continued with another reply ({answer.turn})"
        self.dropped_count += turn_states.drop_all(conn, answer.superseded, DropReason.SUPERSEDED, why, at=at)

    def _process_later_events(self, found: list[Event], after: int) -> bool:
        """Process ends of replies and feedback: feedback takes effect when the reply that it refers to has ended."""
        with self._store.write() as conn:
            if events.read_cursor(conn, CURSOR_NAME) != after:
                return False
            for event in found:
                target = event.data["target"] if event.kind == "feedback.given" else event.ref
                self.reaction_count += reactions.record_pending_feedback(conn, target, event.at)
            events.move_cursor(conn, CURSOR_NAME, found[-1].seq)
        return True


def _is_degenerate(conn: Connection, turn: str) -> bool:
    """Return whether a reply is degenerate. Replies of side calls are not checked when they end."""
    exchange = exchanges.get(conn, turn)
    return exchange is None or exchange.reply is None or degenerate_reason(exchange.reply) is not None


def _format_duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the collect worker until `stop` is set. Raises `StoreError` if file or disk fail.

    Consumes: events of exchanges and feedback, through a durable cursor.
    Produces: links, reactions and state transitions of turns, in one transaction with the cursor.
    Waits for: commits of other connections, checked every `collect.poll` seconds, and timeouts of turns.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    collector = Collector(store, config.collect)
    try:
        await run_worker_loop(
            collector.run_once, collector.write_heartbeat, stop, poll=config.collect.poll, beat_while_busy=False
        )
    finally:
        store.close()
