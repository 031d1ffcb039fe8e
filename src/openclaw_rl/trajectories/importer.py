"""Import trajectories into the store: check, tokenise, score with the head, and write each one whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import Transience
from openclaw_rl.render.model_folder import ModelFiles, identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, imported_turns, policies
from openclaw_rl.store import rows as arrays
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import to_json
from openclaw_rl.trajectories.files import Entry
from openclaw_rl.trajectories.report import Report
from openclaw_rl.trajectories.resolve import Planned, plan
from openclaw_rl.trajectories.schema import Refused
from openclaw_rl.trajectories.turn_builder import Made, Maker
from openclaw_rl.types import Exchange, Ids, Logprobs, Policy, Span

GROUP = 64
"""Trajectories that are tokenised and scored together, and committed in one transaction."""
GROUP_BYTES = 8 * 2**20
MADE, SCORED = 0.25, 0.75
"""Progress of a trajectory when it has its tokens, and when it has its log-probabilities."""
Follow = Callable[[Entry, float], None]
"""(a trajectory, its progress from 0 to 1). It is called once with 1."""


class Scores(Protocol):
    """Interface of `learner.forward.scorer.Scorer`."""

    def score(self, rows: Sequence[tuple[Ids, Ids]], done: Callable[[int], None]) -> list[Logprobs]: ...


_Plan = tuple[Entry, list[Planned]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    """A trajectory that is being imported. `built`: its turns that are not in the store."""

    entry: Entry
    planned: list[Planned]
    known: Mapping[str, imported_turns.Known]
    made: list[Made]


def head_of(store: Store, files: ModelFiles) -> Policy:
    """Return the store's head; create the root of a new store. Raises `IdentityMismatch` for another model."""
    with store.write() as conn:
        policies.ensure_root(conn, base=str(files.folder), identity=identity(files), at=time.time())
    with store.read() as conn:
        return policies.head(conn)


def scorer_of(config: Config, files: ModelFiles, head: Policy) -> Scores:
    """Load the head for scoring. Raises `ModelError` or `ConfigError` when that fails."""
    from openclaw_rl.learner.forward.scorer import Scorer  # imports torch

    return Scorer(str(files.folder), head.path, config.train, config.model)


def _nobody(_: Entry, share: float) -> None:
    """Ignore progress."""


class Importer:
    """Imports trajectories for one model. The policy is loaded when the first turn needs scores."""

    def __init__(self, config: Config, store: Store, *, score: bool = True) -> None:
        """Raises `ModelError` for a missing model, `IdentityMismatch` for a store of another model."""
        files = ModelFiles.of(config.model)
        self._store, self._wanted = store, score
        self._head = head_of(store, files)
        self._load: Callable[[], Scores] = lambda: scorer_of(config, files, self._head)
        self._scorer: Scores | None = None
        self._maker = Maker(
            Renderer(files),
            identity=identity(files),
            key=store.secret,
            transient=Transience(config.serve.transient_patterns),
            version=self._head.version,
        )

    def run(
        self,
        found: Iterable[Entry],
        report: Report,
        *,
        follow: Follow = _nobody,
        stop: Callable[[], bool] = bool,
    ) -> None:
        """Import every entry, or add its refusal to `report`. `stop` is called between groups.

        Raises `StoreError` when database or disk fail. Committed entries stay; a second run imports the others.
        """
        for group in groups(found):
            if stop():
                return
            self._group(group, report, follow)
            for entry in group:
                follow(entry, 1)

    def _group(self, group: Sequence[Entry], report: Report, follow: Follow) -> None:
        now = time.time()
        for wave in _waves(_planned(group, report)):
            ready = self._scored(self._made(wave, report, now, follow), report, follow)
            with self._store.write() as conn:
                self._write(conn, ready, report, now, follow)

    def _made(self, plans: Sequence[_Plan], report: Report, now: float, follow: Follow) -> list[_One]:
        with self._store.read() as conn:
            known = imported_turns.known(conn, [p.id for _, planned in plans for p in planned])
            there = _named(conn, plans, known)
        out: list[_One] = []
        for entry, planned in plans:
            try:
                _check(planned, there)
                new = [p for p in planned if p.id not in known]
                made = self._maker.make(new, now, partial(_making, follow, entry))
            except Refused as problem:
                report.refuse(entry, problem)
                continue
            out.append(_One(entry=entry, planned=planned, known=known, made=made))
        return out

    def _scored(self, ready: Sequence[_One], report: Report, follow: Follow) -> list[_One]:
        """Fill in missing log-probabilities with those of the head, at temperature 1."""
        wanting = [m for one in ready for m in one.made if m.wants_score]
        report.counts.tokenised += len(wanting)
        if not wanting:
            return list(ready)
        if not self._wanted:
            done = {m.request.id: _unscored(m) for m in wanting}
        else:
            self._scorer = self._scorer or self._load()
            rows = [(m.request.prompt_ids, m.reply.response_ids) for m in wanting]
            found = self._scorer.score(rows, lambda n: _scoring(ready, follow, n / len(rows)))
            done = {m.request.id: _with(m, logprobs) for m, logprobs in zip(wanting, found, strict=True)}
            report.counts.scored += len(wanting)
        return [replace(one, made=[done.get(m.request.id, m) for m in one.made]) for one in ready]

    def _write(self, conn: Connection, ready: Sequence[_One], report: Report, now: float, follow: Follow) -> None:
        made = [m for one in ready for m in one.made]
        since = imported_turns.known(conn, [m.request.id for m in made])  # another import may have added them since
        made = [m for m in made if m.request.id not in since]
        imported_turns.add(conn, [m.request for m in made], [m.reply for m in made], [m.place for m in made])
        standing = {**{id_: k for one in ready for id_, k in one.known.items()}, **since}
        standing |= imported_turns.known(conn, [m.request.id for m in made])
        fresh = {m.request.id for m in made}
        for one in ready:
            ours = [p for p in one.planned if standing[p.id].imported]
            outcomes = [outcome for p in ours if (outcome := self._maker.outcome(p, now)).speaks]
            news = False
            for number, outcome in enumerate(outcomes):
                news |= imported_turns.settle(conn, outcome, standing[outcome.turn], now)
                follow(one.entry, SCORED + (1 - SCORED) * number / len(outcomes))
            new = sum(p.id in fresh for p in one.planned)
            report.counts.count(turns=new, of=len(one.planned), news=news)


def _planned(group: Sequence[Entry], report: Report) -> list[_Plan]:
    out: list[_Plan] = []
    for entry in group:
        report.counts.read += 1
        try:
            out.append((entry, plan(entry.trajectory())))
        except Refused as problem:
            report.refuse(entry, problem)
    return out


def _waves(plans: Sequence[_Plan]) -> Iterator[list[_Plan]]:
    """Yield runs of consecutive entries without a common turn, so that each run finds earlier turns in the store."""
    wave: list[_Plan] = []
    ids: set[str] = set()
    for entry, planned in plans:
        own = {p.id for p in planned}
        if wave and own & ids:
            yield wave
            wave, ids = [], set()
        wave.append((entry, planned))
        ids |= own
    if wave:
        yield wave


def groups(found: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in groups of bounded size."""
    group: list[Entry] = []
    size = 0
    for entry in found:
        group.append(entry)
        size += len(entry.raw)
        if len(group) >= GROUP or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _named(conn: Connection, plans: Sequence[_Plan], known: Mapping[str, imported_turns.Known]) -> dict[str, Exchange]:
    """Return the stored exchanges whose ids the files give."""
    ids = [p.id for _, planned in plans for p in planned if p.turn.id is not None and p.id in known]
    parts = (ids[at : at + imported_turns.MOST_ASKED] for at in range(0, len(ids), imported_turns.MOST_ASKED))
    return {id_: found for part in parts for id_, found in exchanges.get_many(conn, part).items()}


def _check(planned: Sequence[Planned], there: Mapping[str, Exchange]) -> None:
    """Raise `TrajectoryRefused` if an id of the file belongs to a stored turn with other messages."""
    for p in planned:
        before = there.get(p.id)
        if before is None or before.reply is None:
            continue
        words = list(before.request.messages), dict(before.reply.message)
        if words != (list(p.messages), dict(p.reply)):
            raise Refused("contradiction", f"id {p.id!r} is in the store with other text; omit the id", p.number)


def _making(follow: Follow, entry: Entry, share: float) -> None:
    """Report the progress of building; `share` from 0 to 1."""
    follow(entry, MADE * share)


def _scoring(ready: Sequence[_One], follow: Follow, share: float) -> None:
    """Report the progress of scoring; `share` from 0 to 1."""
    for one in ready:
        follow(one.entry, MADE + (SCORED - MADE) * share)


def _unscored(made: Made) -> Made:
    return replace(made, place=replace(made.place, untrainable=imported_turns.UNSCORED))


def _with(made: Made, logprobs: Logprobs) -> Made:
    reply = replace(made.reply, logprobs=np.asarray(logprobs, np.float32))
    return replace(made, reply=reply, place=replace(made.place, untrainable=None))


GROUP = 64


def score_waiting(config: Config, store: Store, progress: Callable[[int], None]) -> int:
    """Score every unscored turn with the head. Return their number.

    Raises `ModelError`, `IdentityMismatch`, `StoreError`; turns scored until then keep their scores.
    """
    files = ModelFiles.of(config.model)
    head = head_of(store, files)
    scorer: Scores | None = None
    after, done = 0, 0
    while True:
        with store.read() as conn:
            waiting = imported_turns.unscored(conn, after=after, limit=GROUP)
            found = exchanges.get_many(conn, [id_ for _, id_ in waiting])
        if not waiting:
            return done
        scorer = scorer or scorer_of(config, files, head)
        turns = [found[id_] for _, id_ in waiting]
        rows = [(e.request.prompt_ids, e.reply.response_ids) for e in turns if e.reply is not None]
        scores = scorer.score(rows, lambda _: None)
        with store.write() as conn:
            for (seq, _), (_, response), logprobs in zip(waiting, rows, scores, strict=True):
                spans = to_json((Span(start=0, end=len(response), version=head.version),))
                packed = arrays.pack_logprobs(logprobs)
                imported_turns.score(conn, seq, logprobs=packed, spans=spans, version=head.version)
        after, done = waiting[-1][0], done + len(waiting)
        progress(len(waiting))
