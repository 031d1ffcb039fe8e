"""Invariants over a store and a log of what clients saw. Each check returns its violations as sentences."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.client_log import ClientLog, ClientRequest, FaultWindow
from benchmarks.faults.environment_invariants import check_episodes
from benchmarks.faults.practice_invariants import check_head_state, check_practice
from sqlalchemy import Connection, func, select

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, schema
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import ExchangeStatus, PolicyState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Limits in seconds.

    `outage`: between two replies to the probe beside its pause, in a fault that is to delay no reply. `stall`: longest
    time without a successful reply outside of faults, and longest wait for a reply there. `recovery`: until all workers
    run, if it is more than `--recovery`. `trainer_start`: the same after a fault at whose end a trainer starts, beside
    users who leave no core idle. `learning`: until a new version is published.
    """

    outage: float = 3.0
    stall: float = 15.0
    recovery: float = 0.0
    trainer_start: float = 30.0
    learning: float = 60.0


USUAL_LIMITS = PlanLimits()

# Turn, revision, judge.
VerdictKey = tuple[str, int, str]


# -------------------------------------------------------------------- nothing acknowledged is lost


def check_replies(
    conn: Connection, requests: Iterable[ClientRequest], spared: set[str]
) -> Iterator[str]:
    """A reply that came whole is in the store once, with the text and the tokens. `spared`: rows damaged on purpose."""
    for request in requests:
        if not request.finished or request.id is None or request.id in spared:
            continue
        count = conn.scalar(select(func.count()).where(schema.exchanges.c.id == request.id))
        exchange = exchanges.get(conn, request.id) if count else None
        if count != 1 or exchange is None:
            yield f"reply {request.id} came whole and is {count} times in the store"
        elif exchange.reply is None or exchange.reply.status is not ExchangeStatus.DONE:
            yield f"reply {request.id} came whole and is not finished in the store"
        elif (exchange.reply.message.get("content") or "") != request.reply:
            yield f"reply {request.id} has another text in the store"
        elif request.tokens is not None and len(exchange.reply.response_ids) != request.tokens:
            stored = len(exchange.reply.response_ids)
            yield f"reply {request.id} came with {request.tokens} tokens and has {stored} in the store"


def _continues_degenerate(conn: Connection, target: str, reaction: str) -> bool:
    cause = conn.scalar(select(schema.turns.c.cause).where(schema.turns.c.id == target))
    parent = conn.scalar(select(schema.turns.c.parent).where(schema.turns.c.id == reaction))
    return cause == ReasonCode.DEGENERATE.value and parent == target


def check_reactions(
    conn: Connection, requests: Iterable[ClientRequest], spared: set[str]
) -> Iterator[str]:
    """A user message that was accepted is recorded as the reaction to the reply before it.

    Of conversations that are the same word for word, nobody can say whose a message is: it is recorded on one of their
    replies. A degenerate reply is dropped and records no reaction; the message then only continues its conversation.
    """
    requests = list(requests)
    same = _same_conversations(requests)
    for request in requests:
        target = request.previous
        if target is None or request.id is None or {target, request.id} & spared:
            continue
        alike = same.get(target, [target])
        stored = conn.scalars(
            select(schema.reactions.c.messages).where(schema.reactions.c.turn.in_(alike))
        )
        if not any(
            _has_message(messages, request.text) for messages in stored
        ) and not _continues_degenerate(conn, target, request.id):
            yield f"the reaction {request.text[:40]!r} to {target} was accepted and is not recorded"


def _same_conversations(requests: Sequence[ClientRequest]) -> dict[str, list[str]]:
    """Return, for each reply, those whose conversations have the same words up to and with it."""
    words: dict[str, tuple[str, ...]] = {}
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for request in requests:
        if request.id is not None:
            words[request.id] = (
                *words.get(request.previous or "", ()),
                request.text,
                request.reply,
            )
            alike[words[request.id]].append(request.id)
    return {id_: alike[text] for id_, text in words.items()}


def _has_message(stored: bytes, text: str) -> bool:
    return any(message.get("content") == text for message in json.loads(stored))


def check_feedback(conn: Connection, log: ClientLog) -> Iterator[str]:
    """Feedback that was acknowledged is in the store once, with its target and its score."""
    table = schema.feedback
    for given in log.feedback:
        rows = conn.execute(
            select(table.c.target, table.c.score).where(table.c.id == given.id)
        ).all()
        if [tuple(row) for row in rows] != [(given.target, given.score)]:
            yield f"feedback {given.id} on {given.target} was acknowledged and is not in the store as it was sent"


def read_verdicts(conn: Connection) -> dict[VerdictKey, int | None]:
    """Return the score of each verdict."""
    table = schema.verdicts
    rows = conn.execute(select(table.c.turn, table.c.revision, table.c.judge, table.c.score))
    return {(turn, revision, judge): score for turn, revision, judge, score in rows}


def check_verdicts(conn: Connection, saved: Mapping[VerdictKey, int | None]) -> Iterator[str]:
    """A verdict that was saved once is still there, with its score."""
    now = read_verdicts(conn)
    for key, score in saved.items():
        if key not in now:
            yield f"the verdict of {key[2]} on {key[0]}, revision {key[1]}, is lost"
        elif now[key] != score:
            yield f"the verdict of {key[2]} on {key[0]}, revision {key[1]}, was {score} and is {now[key]}"


# ---------------------------------------------------------------------------------------- versions


def check_uses(conn: Connection, max_uses: int) -> Iterator[str]:
    """No turn is used more than `max_uses` times by a version and its ancestors."""
    parents: dict[int, int | None] = {p.version: p.parent for p in policies.list_all(conn)}
    users: dict[str, list[int]] = defaultdict(list)
    for version, turn in conn.execute(select(schema.uses.c.policy, schema.uses.c.turn)):
        users[turn].append(version)
    for turn, versions in users.items():
        if len(versions) <= max_uses:
            continue
        for version in versions:
            line = _ancestors(version, parents)
            if (count := sum(v in line for v in versions)) > max_uses:
                yield f"turn {turn} is used {count} times by version {version} and its ancestors"


def _ancestors(version: int, parents: Mapping[int, int | None]) -> set[int]:
    line: set[int] = set()
    current: int | None = version
    while current is not None and current not in line:
        line.add(current)
        current = parents.get(current)
    return line


def check_files(conn: Connection, home: Path, newest: int | None = None) -> Iterator[str]:
    """The files of a version match its digest, and those of the head are there. `newest`: check only so many."""
    head = policies.head(conn)
    kept = [p for p in policies.list_all(conn) if p.path and p.state is not PolicyState.REJECTED]
    for policy in {p.version: p for p in [*kept[-(newest or len(kept)) :], head]}.values():
        if policy.path is None:
            continue
        try:
            digest = digest_of_folder(home / policy.path)
        except FileNotFoundError as error:
            if policy.version == head.version:
                yield f"the head is version {policy.version}, and its files are not there: {error}"
            continue
        if digest != policy.digest:
            yield f"the files of version {policy.version} do not match its digest"


def check_head(conn: Connection, served: int | None) -> Iterator[str]:
    """The version that the gateway serves is the head of the store."""
    head = policies.head(conn).version
    if served != head:
        yield f"the gateway serves version {served}, and the head of the store is {head}"


def check_damaged_versions(conn: Connection, log: ClientLog) -> Iterator[str]:
    """A version with damaged files answers no request and is trained on by no later version."""
    known = policies.list_all(conn)
    for damage in log.damaged_versions:
        served = [
            r
            for r in log.requests
            if r.version == damage.version and damage.since < r.began < damage.until
        ]
        if served:
            yield f"version {damage.version} was damaged and answered {len(served)} requests"
        children = [
            p.version
            for p in known
            if p.parent == damage.version and damage.since < p.created_at < damage.until
        ]
        if children:
            yield f"version {damage.version} was damaged, and versions {children} were trained on it"


# ----------------------------------------------------------------------------------------- serving


def check_answers(
    requests: Iterable[ClientRequest], windows: Sequence[FaultWindow]
) -> Iterator[str]:
    """A request fails only during a fault that allows it."""
    for request in requests:
        if request.finished:
            continue
        during = [w for w in windows if request.overlaps(w.began, w.recovered)]
        if not any(_is_allowed(request, window) for window in during):
            when = f"during {during[0].name}" if during else "without a fault"
            yield f"a request failed {when} ({request.status}): {request.error[:150]}"


def _is_allowed(request: ClientRequest, window: FaultWindow) -> bool:
    if window.allows == "errors":
        return True
    if window.allows == "nothing":
        return False
    # A stream that had begun cannot get another status. Its error event must say what happened.
    has_stream_error = request.status == 200 and request.id is not None and bool(request.error)
    return has_stream_error or (request.status == 503 and request.retry_after is not None)


def check_outages(
    requests: Sequence[ClientRequest],
    windows: Sequence[FaultWindow],
    limit: float = USUAL_LIMITS.stall,
) -> Iterator[str]:
    """Outside of faults that allow errors, replies come, and none takes more than `limit` seconds."""
    allowed = [w for w in windows if w.allows != "nothing"]

    def is_excused(began: float, ended: float) -> bool:
        return any(w.began <= ended and w.recovered >= began for w in allowed)

    for request in requests:
        seconds = request.ended - request.began
        if seconds > limit and not is_excused(request.began, request.ended):
            yield f"a request took {seconds:.1f} s without a fault that explains it"
    successes = sorted(request.ended for request in requests if request.finished)
    for before, after in itertools.pairwise(successes):
        if after - before > limit and not is_excused(before, after):
            yield f"no request was answered for {after - before:.1f} s, and no fault explains it"


# ---------------------------------------------------------------------------------------- together


def check_store(
    conn: Connection,
    log: ClientLog,
    requests: Sequence[ClientRequest],
    saved: Mapping[VerdictKey, int | None],
    config: Config,
) -> list[str]:
    """Return the violations of what the store promises at any time. `requests`: those whose replies are checked."""
    return [
        *check_replies(conn, requests, log.damaged_rows),
        *check_feedback(conn, log),
        *check_verdicts(conn, saved),
        *check_uses(conn, config.train.batch.max_uses),
        *check_damaged_versions(conn, log),
        *check_head_state(conn),
        *check_practice(conn, config.practice, log.forgotten),
        *check_episodes(conn, log.cuts),
    ]
