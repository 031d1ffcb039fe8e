"""Collect worker: reads the event log of exchanges, links turns and writes their reactions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import groupby

from sqlalchemy import Connection

from openclaw_rl.collect.link import Answer, Link, link
from openclaw_rl.collect.traffic import Sides
from openclaw_rl.settings.load import CollectConfig, Config
from openclaw_rl.store import events, exchanges, heartbeats, reactions, turn_states
from openclaw_rl.store.db import Store
from openclaw_rl.store.degenerate import degenerate
from openclaw_rl.store.exchange_index import StoredPast
from openclaw_rl.store.turn_states import Cause
from openclaw_rl.types import Event, Exchange, Kind

CURSOR = "collect"
KINDS = ("exchange.admitted", "exchange.finished", "feedback.given")
BATCH = 256
BEAT_EVERY = 1.0
OVERDUE_BATCH = 500


class Collector:
    """Processes events in order. An interrupted step is repeated from the cursor."""

    def __init__(self, store: Store, config: CollectConfig) -> None:
        self._store = store
        self._timeout = config.session_timeout
        self._sides = Sides(config.side_patterns, config.interlude_patterns)
        self.linked = self.answered = self.dropped = 0

    def step(self, limit: int = BATCH) -> int:
        """Process up to `limit` events. Returns their number."""
        with self._store.read() as conn:
            at = events.cursor(conn, CURSOR)
            found = events.after(conn, at, limit, KINDS)
        for admitted, group in groupby(found, key=lambda e: e.kind == "exchange.admitted"):
            for part in [[event] for event in group] if admitted else [list(group)]:
                if not (self._admitted(part[0], at) if admitted else self._later(part, at)):
                    return len(found)
                at = part[-1].seq
        return len(found)

    def drop_overdue(self, now: float) -> int:
        """Drop turns that have had no reaction for `session_timeout` seconds. Returns their number."""
        with self._store.read() as conn:
            late = reactions.overdue(conn, now - self._timeout, OVERDUE_BATCH)
        if not late:
            return 0
        with self._store.write() as conn:
            n = turn_states.drop_all(
                conn, late, Cause.TIMEOUT, f"no reaction within {_duration(self._timeout)}", at=now
            )
        self.dropped += n
        return n

    def _admitted(self, event: Event, after: int) -> bool:
        """Link one request. Returns False, without changes, if another collector has moved the cursor from `after`."""
        with self._store.read() as conn:
            exchange = exchanges.get(conn, event.ref)
            assert exchange is not None, f"event {event.seq} names exchange {event.ref}, which is not in the store"
            decided = link(exchange.request, exchange.seq, StoredPast(conn), self._sides)
        with self._store.write() as conn:
            if events.cursor(conn, CURSOR) != after:
                return False
            self._apply(conn, exchange, decided)
            events.move_cursor(conn, CURSOR, event.seq)
        self.linked += 1
        return True

    def _apply(self, conn: Connection, exchange: Exchange, decided: Link) -> None:
        request = exchange.request
        kind = reactions.place(
            conn,
            request.id,
            session=decided.session,
            parent=decided.parent,
            kind=decided.kind,
            relation=decided.relation,
            relation_of=decided.relation_of,
            unlinked=decided.unlinked,
        )
        for answer in decided.answers:
            self._answer(conn, exchange, answer)
        at = request.admitted_at
        if kind is Kind.SIDE:
            turn_states.drop(conn, request.id, Cause.SIDE, f"side traffic: {decided.why_side}", at=at)
        if request.session_done:
            ended = reactions.served_in_session(conn, request.scope, decided.session)
            self.dropped += turn_states.drop_all(
                conn, ended, Cause.SESSION_DONE, "the session ended without a reaction", at=at
            )

    def _answer(self, conn: Connection, exchange: Exchange, answer: Answer) -> None:
        request = exchange.request
        at = request.admitted_at
        if answer.redacted:
            why = "turn or reaction was stored without its text (redacted): it cannot be judged"
            turn_states.drop(conn, answer.turn, Cause.REDACTED, why, at=at)
        elif not (answer.was_side and _is_degenerate(conn, answer.turn)):
            self.answered += reactions.close(
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
        self.dropped += turn_states.drop_all(conn, answer.superseded, Cause.SUPERSEDED, why, at=at)

    def _later(self, found: list[Event], after: int) -> bool:
        """Process ends of replies and feedback: feedback takes effect when the reply that it refers to has ended."""
        with self._store.write() as conn:
            if events.cursor(conn, CURSOR) != after:
                return False
            for event in found:
                target = event.data["target"] if event.kind == "feedback.given" else event.ref
                self.answered += reactions.take_up_feedback(conn, target, event.at)
            events.move_cursor(conn, CURSOR, found[-1].seq)
        return True


def _is_degenerate(conn: Connection, turn: str) -> bool:
    """Return whether a reply is degenerate. Replies of side calls are not checked when they end."""
    exchange = exchanges.get(conn, turn)
    return exchange is None or exchange.reply is None or degenerate(exchange.reply) is not None


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the collect worker until `stop` is set. Raises `StoreError` if file or disk fail.

    Consumes: events of exchanges and feedback, through a durable cursor.
    Produces: links, reactions and state transitions of turns, in one transaction with the cursor.
    Waits for: commits of other connections, checked every `collect.poll` seconds, and timeouts of turns.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    collector = Collector(store, config.collect)
    sweep_every = min(5.0, config.collect.session_timeout / 4)
    beat_at = sweep_at = 0.0
    busy = True
    try:
        while not stop.is_set():
            if store.changed() or busy:
                busy = await asyncio.to_thread(collector.step) > 0
            now = time.monotonic()
            if now >= sweep_at:
                sweep_at = now + sweep_every
                await asyncio.to_thread(collector.drop_overdue, time.time())
            if now >= beat_at:
                beat_at = now + BEAT_EVERY
                note = f"{collector.linked} linked, {collector.answered} answered, {collector.dropped} dropped"
                await asyncio.to_thread(heartbeats.beat, store, "collect", note)
            if not busy:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), config.collect.poll)
    finally:
        store.close()
