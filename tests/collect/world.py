"""Conversations as short scripts, played to the pure linker in memory or to the real store and loop.

A message is a line: `s` system, `u` user, `a` assistant, `t` tool result, `ctx` OpenClaw's transient context; a message
of any other shape is written as it goes over the wire.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from openclaw_rl.collect.link import RequestLink, link_request
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.worker import CURSOR_NAME, Collector
from openclaw_rl.common import message_hash
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import CollectConfig, ServeConfig, SignalsConfig
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import ExchangeSummary
from openclaw_rl.store.feedback import records
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    Feedback,
    FinishReason,
    Kind,
    Mark,
    Message,
    Reply,
    Request,
    Sampling,
    TurnState,
)

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
TRANSIENT = message_hash.EphemeralMatcher(ServeConfig().ephemeral_patterns)
SIDES = TrafficClassifier(CollectConfig().side_patterns, CollectConfig().client_prompt_patterns)
KEY = b"k" * 32


def message(line: str | Message) -> Message:
    if not isinstance(line, str):
        return line
    role, _, text = line.partition(" ")
    if role == "ctx":
        block = (
            f"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n{text}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
        )
        return {"role": "user", "content": [{"type": "text", "text": block}]}
    return {"role": ROLES[role], "content": text}


def calls(*made: tuple[str, str, str], content: str | None = None) -> Message:
    """An assistant message that calls tools: (id, name, arguments as JSON words) each."""
    functions = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in made
    ]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def result(id_: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": text}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, and how it ends before the next step (`reply` None: it goes on running)."""

    name: str
    history: Sequence[str | Message]
    reply: str | Message | None = None
    status: ExchangeStatus = ExchangeStatus.DONE
    scope: str = "key"
    session: str | None = None
    user: str = ""
    agent: str = ""
    kind: Kind | None = None
    done: bool = False
    capture: Capture = Capture.FULL
    previous: str | None = None
    stop: Sequence[str] = ()
    version: int = 0
    expect: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class End:
    """A reply that was still running ends."""

    name: str
    reply: str | Message
    status: ExchangeStatus = ExchangeStatus.DONE


@dataclass(frozen=True, kw_only=True)
class Say:
    """Explicit feedback."""

    name: str
    score: int
    scope: str = "key"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Time goes by, and turns without a reaction run out."""

    seconds: float


Step = Ask | End | Say | Wait


def request_of(ask: Ask, *, key: bytes, at: float) -> Request:
    messages = [message(line) for line in ask.history]
    first = next((m for m in messages if m.get("role") == "user"), {})
    session, agent = message_hash.openclaw_session(first) or (None, "")
    return Request(
        id=ask.name,
        scope=ask.scope,
        agent=ask.agent or agent,
        user=ask.user,
        session=ask.session or session,
        kind=ask.kind,
        session_done=ask.done,
        capture=ask.capture,
        previous=ask.previous,
        messages=messages,
        marks=message_hash.mark_messages(messages, key, TRANSIENT),
        sampling=Sampling(stop=tuple(ask.stop)),
        prompt_ids=np.arange(1, 9, dtype=np.int32),
        version=ask.version,
        identity="i",
        admitted_at=at,
    )


def reply_of(
    request: Request, line: str | Message, status: ExchangeStatus, *, key: bytes, at: float
) -> Reply:
    said = message(f"a {line}" if isinstance(line, str) else line)
    ids = np.arange(1, 8, dtype=np.int32)
    chain = request.marks[-1].chain if request.marks else message_hash.CHAIN_ROOT
    finish = FinishReason.TOOL_CALLS if said.get("tool_calls") else FinishReason.STOP
    return Reply(
        id=request.id,
        status=status,
        message=said,
        response_ids=ids,
        logprobs=np.zeros(len(ids), np.float32),
        mask=np.ones(len(ids), np.bool_),
        spans=(),
        finish_reason=finish if status is ExchangeStatus.DONE else None,
        mark=message_hash.mark_message(said, index=len(request.messages), chain=chain, key=key),
        finished_at=at,
    )


@dataclass(frozen=True)
class Seen:
    """What became of one request, as a test reads it."""

    parent: str | None
    relation: str
    relation_of: str | None
    unlinked: str | None
    session: str
    kind: Kind
    answers: Mapping[str, tuple[str, tuple[str, ...]]]  # turn -> how, the words


class Player(Protocol):
    """Plays steps; `seen` and `state` say what happened."""

    def play(self, step: Step) -> None: ...

    def seen(self, name: str) -> Seen: ...

    def state(self, name: str) -> tuple[TurnState, str | None]: ...


class Memory:
    """The pure linker over an index in memory; what it decides is done to the index."""

    secret = KEY

    def __init__(self, built: dict[str, Request] | None = None) -> None:
        """`built`: requests by name, kept from one world to the next (their hashes are the same every time)."""
        self._built = {} if built is None else built
        self.pasts: dict[str, ExchangeSummary] = {}
        self.requests: dict[str, Request] = {}
        self.links: dict[str, RequestLink] = {}
        self.replies: dict[str, Message] = {}
        self._tables: dict[str, dict[tuple[str, bytes], list[str]]] = {
            "chain": {},
            "own": {},
            "context": {},
            "call": {},
        }
        self._now = itertools.count(1)

    def by_chain(self, scope: str, chains: Collection[bytes]) -> list[ExchangeSummary]:
        return self._look("chain", scope, chains)

    def by_own(self, scope: str, owns: Collection[bytes]) -> list[ExchangeSummary]:
        return self._look("own", scope, owns)

    def by_own_in_session(self, scope: str, session: str, own: bytes) -> list[ExchangeSummary]:
        return [p for p in self._look("own", scope, [own]) if p.session == session]

    def by_context(self, scope: str, chains: Collection[bytes]) -> list[ExchangeSummary]:
        return self._look("context", scope, chains)

    def by_tool_call(self, scope: str, calls: Collection[str]) -> dict[str, list[ExchangeSummary]]:
        return {
            call: found for call in calls if (found := self._look("call", scope, [call.encode()]))
        }

    def last_messages(self, pasts: Sequence[ExchangeSummary]) -> dict[str, bytes]:
        return {p.id: self.requests[p.id].marks[-1].own for p in pasts if self.requests[p.id].marks}

    def by_parent(self, scope: str, session: str, parent: str | None) -> list[ExchangeSummary]:
        return [
            past
            for past in self.pasts.values()
            if (past.scope, past.session, past.parent) == (scope, session, parent)
        ]

    def marks(self, pasts: Sequence[ExchangeSummary]) -> dict[str, tuple[Mark, ...]]:
        return {past.id: self.requests[past.id].marks for past in pasts}

    def messages(self, past: ExchangeSummary) -> Sequence[Message]:
        return self.requests[past.id].messages

    def message_hashes(self, past: ExchangeSummary) -> set[bytes]:
        return {mark.own for mark in self.requests[past.id].marks}

    def reply_messages(self, pasts: Sequence[ExchangeSummary]) -> dict[str, Message]:
        return {p.id: self.replies[p.id] for p in pasts if p.id in self.replies}

    def side_replies_after(self, past: ExchangeSummary) -> list[str]:
        later = (
            p
            for p in self.pasts.values()
            if p.seq > past.seq and p.scope == past.scope and p.kind is Kind.SIDE
        )
        return [
            message_hash.visible_text(self.replies[p.id]) for p in later if p.id in self.replies
        ]

    def main_replies_before(self, scope: str, seq: int) -> list[tuple[ExchangeSummary, str]]:
        earlier = [
            p
            for p in self.pasts.values()
            if p.seq < seq and p.scope == scope and p.kind is Kind.MAIN
        ]
        return [
            (p, message_hash.visible_text(self.replies[p.id]))
            for p in reversed(earlier)
            if p.id in self.replies
        ]

    def prompt_text(self, past: ExchangeSummary) -> str:
        return "\n".join(map(message_hash.visible_text, self.requests[past.id].messages))

    def stop_strings(self, pasts: Sequence[ExchangeSummary]) -> dict[str, Sequence[str]]:
        return {p.id: self.requests[p.id].sampling.stop for p in pasts}

    def by_id(self, scope: str, id: str) -> ExchangeSummary | None:
        found = self.pasts.get(id)
        return found if found is not None and found.scope == scope else None

    def _look(self, table: str, scope: str, values: Collection[bytes]) -> list[ExchangeSummary]:
        names = {name for value in values for name in self._tables[table].get((scope, value), ())}
        return sorted((self.pasts[name] for name in names), key=lambda p: p.seq)

    def _put(self, table: str, scope: str, value: bytes | None, name: str) -> None:
        if value is not None:
            self._tables[table].setdefault((scope, value), []).append(name)

    def play(self, step: Step) -> None:
        if isinstance(step, Ask):
            self._ask(step)
            if step.reply is not None:
                self._end(step.name, step.reply, step.status)
        elif isinstance(step, End):
            self._end(step.name, step.reply, step.status)
        else:
            raise ValueError(f"in memory there is no {step}: expected Ask or End")

    def _ask(self, ask: Ask) -> None:
        at = float(next(self._now))
        if ask.name not in self._built:
            self._built[ask.name] = request_of(ask, key=KEY, at=at)
        request = replace(self._built[ask.name], admitted_at=at)
        seq = len(self.pasts) + 1
        decided = link_request(request, seq, self, SIDES)
        side = decided.kind is Kind.SIDE
        self.requests[ask.name], self.links[ask.name] = request, decided
        self.pasts[ask.name] = ExchangeSummary(
            seq=seq,
            id=ask.name,
            scope=ask.scope,
            agent=request.agent,
            user=ask.user,
            session_header=request.session,
            declared_kind=ask.kind,
            session=decided.session,
            kind=decided.kind,
            capture=ask.capture,
            status=ExchangeStatus.RUNNING,
            admitted_at=at,
            finished_at=None,
            context_chain=request.marks[-1].chain if request.marks else None,
            reply_own=None,
            reply_chain=None,
            state=TurnState.DROPPED if side else TurnState.SERVED,
            cause=ReasonCode.SIDE if side else None,
            previous=ask.previous,
            parent=decided.parent,
            version=request.version,
        )
        self._put("context", ask.scope, self.pasts[ask.name].context_chain, ask.name)
        for answer in decided.reaction_links:
            signatures = self.pasts[answer.turn].signatures | {answer.signature}
            self._set(answer.turn, state=TurnState.CLOSED, cause=None, signatures=signatures)
            if answer.was_side:
                self._set(answer.turn, kind=Kind.MAIN)
            for other in answer.superseded:
                self._set(other, state=TurnState.DROPPED, cause=ReasonCode.SUPERSEDED)

    def _end(self, name: str, line: str | Message, status: ExchangeStatus) -> None:
        at = float(next(self._now))
        reply = reply_of(self.requests[name], line, status, key=KEY, at=at)
        assert reply.mark is not None
        self.replies[name] = reply.message
        self._set(
            name,
            status=status,
            finished_at=at,
            reply_own=reply.mark.own,
            reply_chain=reply.mark.chain,
        )
        self._put("own", self.pasts[name].scope, reply.mark.own, name)
        self._put("chain", self.pasts[name].scope, reply.mark.chain, name)
        for call in reply.message.get("tool_calls") or ():
            self._put("call", self.pasts[name].scope, call["id"].encode(), name)
        if status is not ExchangeStatus.DONE:
            self._set(name, state=TurnState.DROPPED, cause=ReasonCode(status.value))

    def _set(self, name: str, **changes: Any) -> None:
        self.pasts[name] = replace(self.pasts[name], **changes)

    def seen(self, name: str) -> Seen:
        decided, messages = self.links[name], self.requests[name].messages
        return Seen(
            decided.parent,
            decided.relation,
            decided.relation_of,
            decided.unlinked,
            decided.session,
            decided.kind,
            {
                a.turn: (
                    a.how,
                    (a.spoken,)
                    if a.spoken is not None
                    else tuple(message_hash.message_text(messages[i]) for i in a.messages),
                )
                for a in decided.reaction_links
            },
        )

    def state(self, name: str) -> tuple[TurnState, str | None]:
        return self.pasts[name].state, self.pasts[name].cause


class Stored:
    """The real store and the real loop's steps."""

    def __init__(
        self, path: Path, *, timeout: float = 1000.0, signals: SignalsConfig | None = None
    ) -> None:
        self.store = Store.open(path)
        self.collector = Collector(self.store, CollectConfig(session_timeout=timeout), signals)
        self.now = 1000.0
        self._requests: dict[str, Request] = {}
        self._feedback = itertools.count(1)

    def play(self, step: Step, *, collect: bool = True) -> None:
        self.now += 1
        if isinstance(step, Ask):
            self._requests[step.name] = request_of(step, key=self.store.secret, at=self.now)
            with self.store.write() as conn:
                exchanges.admit(conn, [self._requests[step.name]])
            if step.reply is not None:
                self.now += 1
                self._end(step.name, step.reply, step.status)
        elif isinstance(step, End):
            self._end(step.name, step.reply, step.status)
        elif isinstance(step, Say):
            given = f"feedback-{next(self._feedback)}"
            item = Feedback(
                id=given, scope=step.scope, target=step.name, score=step.score, given_at=self.now
            )
            with self.store.write() as conn:
                records.add_feedback(conn, [item])
        else:
            self.now += step.seconds
            self.collector.observe_abandoned(self.now)
            self.collector.drop_overdue(self.now)
        if collect:
            self.collect()

    def collect(self) -> None:
        while self.collector.step():
            pass

    def replay(self) -> None:
        """Every event once more, as after a crash before the cursor was moved."""
        with self.store.write() as conn:
            events.move_cursor(conn, CURSOR_NAME, 0)
        self.collect()

    def _end(self, name: str, line: str | Message, status: ExchangeStatus) -> None:
        reply = reply_of(self._requests[name], line, status, key=self.store.secret, at=self.now)
        with self.store.write() as conn:
            exchanges.finish(conn, [reply])

    def seen(self, name: str) -> Seen:
        with self.store.read() as conn:
            turn = turns.get(conn, name)
            assert turn is not None
            rows = conn.exec_driver_sql(
                "SELECT turn, revision FROM reactions WHERE source = ? ORDER BY turn", (name,)
            )
            reactions = {row.turn: turns.current_reaction(conn, row.turn) for row in rows}
            kind = conn.exec_driver_sql("SELECT kind FROM turns WHERE id = ?", (name,)).scalar_one()
        words = {
            t: (r.how, tuple(map(message_hash.message_text, r.messages)))
            for t, r in reactions.items()
            if r and r.source == name
        }
        return Seen(
            turn.parent,
            turn.relation,
            turn.relation_of,
            turn.unlinked,
            turn.session,
            Kind(kind),
            words,
        )

    def state(self, name: str) -> tuple[TurnState, str | None]:
        with self.store.read() as conn:
            row = conn.exec_driver_sql("SELECT state, cause FROM turns WHERE id = ?", (name,)).one()
        return TurnState(row.state), row.cause

    def snapshot(self) -> list[Any]:
        """Everything that collecting writes, but for the log."""
        with self.store.read() as conn:
            return [
                conn.exec_driver_sql(f"SELECT * FROM {table} ORDER BY 1, 2").all()
                for table in ("turns", "reactions", "feedback", "cursors")
            ]
