"""Import trajectories into the store: check, tokenise, score with the head, and write them in short transactions.

A trajectory is refused as a whole or not at all. An import that is interrupted leaves the turns that it has written;
the next one adds the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.policy_digest import TINKER_FILE, weight_files
from openclaw_rl.errors import ModelError
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, imported_turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import ReportProgress, digest_files
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.rows import pack_logprobs, to_json
from openclaw_rl.trajectories.entry_writer import EntryWriter
from openclaw_rl.trajectories.files import TrajectoryEntry
from openclaw_rl.trajectories.report import ImportReport
from openclaw_rl.trajectories.resolve import ResolvedTurn, resolve_turns
from openclaw_rl.trajectories.schema import TrajectoryRefused
from openclaw_rl.trajectories.turn_builder import BuiltTurn, TurnBuilder
from openclaw_rl.types import Exchange, Ids, Logprobs, Policy, Span

GROUP_SIZE = 64
"""Trajectories that are tokenised and scored together."""
GROUP_BYTES = 8 * 2**20
LONGEST_TRANSACTION = 0.02
"""Seconds until the write lock is released, because replies and other workers wait for it. One turn may take longer."""
BUILT_SHARE = 0.25
SCORED_SHARE = 0.75
"""Progress of a trajectory when it has its tokens, and when it has its log-probabilities."""
EntryProgress = Callable[[TrajectoryEntry, float], None]
"""(a trajectory, its progress from 0 to 1). It is called once with 1."""


class LogprobScorer(Protocol):
    """Interface of `learner.forward.scorer.Scorer`."""

    def score(
        self, rows: Sequence[tuple[Ids, Ids]], done: Callable[[int], None]
    ) -> list[Logprobs]: ...


_ResolvedEntry = tuple[TrajectoryEntry, list[ResolvedTurn]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingEntry:
    """A trajectory that is being imported. `built`: its turns that are not in the store."""

    entry: TrajectoryEntry
    planned: list[ResolvedTurn]
    known: Mapping[str, imported_turns.KnownTurn]
    built: list[BuiltTurn]


def identify_model(
    store: Store,
    files: ModelFiles,
    report: ReportProgress = lambda progress: None,
    should_stop: Callable[[], bool] = bool,
) -> str:
    """Return the identity of the model. Weights that the store does not know are hashed, which may take minutes."""
    return compute_identity(
        files, digest_files(store, files.weights, report=report, should_stop=should_stop)
    )


def load_head(store: Store, files: ModelFiles, identity: str) -> Policy:
    """Return the store's head; create the root of a new store. Raises `IdentityMismatch` for another model."""
    with store.write() as conn:
        policies.ensure_root(conn, base=str(files.folder), identity=identity, at=time.time())
    with store.read() as conn:
        return policies.head(conn)


def load_scorer(config: Config, files: ModelFiles, head: Policy) -> LogprobScorer:
    """Load the head for scoring. Raises `ModelError` or `ConfigError` when that fails."""
    # Imports torch.
    from openclaw_rl.learner.forward.scorer import SequenceScorer

    if head.path is not None and weight_files(head.path) == (TINKER_FILE,):
        raise ModelError(
            f"version {head.version} is at the Tinker service, and log-probabilities of imported turns are computed "
            "here. Import with --no-score: such turns are stored, and not trained on"
        )
    return SequenceScorer(str(files.folder), head.path, config.train, config.model)


class TrajectoryImporter:
    """Imports trajectories for one model. The policy is loaded when the first turn needs scores."""

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        score: bool = True,
        report: ReportProgress = lambda progress: None,
        should_stop: Callable[[], bool] = bool,
    ) -> None:
        """`report`, `should_stop`: progress of the hashing of weights that are new to the store, and its end.

        Raises `ModelError` for a missing model, `IdentityMismatch` for a store of another model, `StartStopped`.
        """
        files = ModelFiles.from_config(config.model)
        self._store = store
        self._wants_scores = score
        identity = identify_model(store, files, report, should_stop)
        self._head = load_head(store, files, identity)
        self._load_scorer: Callable[[], LogprobScorer] = lambda: load_scorer(
            config, files, self._head
        )
        self._scorer: LogprobScorer | None = None
        self._builder = TurnBuilder(
            Renderer(files, literal_text=config.serve.special_tokens != "model"),
            identity=identity,
            key=store.secret,
            transient=EphemeralMatcher(config.serve.ephemeral_patterns),
            version=self._head.version,
        )

    def run(
        self,
        entries: Iterable[TrajectoryEntry],
        report: ImportReport,
        *,
        follow: EntryProgress = lambda entry, share: None,
        stop: Callable[[], bool] = bool,
    ) -> None:
        """Import every entry, or add its refusal to `report`. `stop` is called between groups.

        Raises `StoreError` when database or disk fail. Committed entries stay; a second run imports the others.
        """
        for group in group_entries(entries):
            if stop():
                return
            self._import_group(group, report, follow)
            for entry in group:
                follow(entry, 1)

    def _import_group(
        self, group: Sequence[TrajectoryEntry], report: ImportReport, follow: EntryProgress
    ) -> None:
        now = time.time()
        for wave in _disjoint_runs(_resolve_entries(group, report)):
            ready = self._score_entries(
                self._build_entries(wave, report, now, follow), report, follow
            )
            self._write_entries(ready, report, now, follow)

    def _build_entries(
        self,
        plans: Sequence[_ResolvedEntry],
        report: ImportReport,
        now: float,
        follow: EntryProgress,
    ) -> list[_PendingEntry]:
        with self._store.read() as conn:
            known = imported_turns.known_turns(
                conn, [p.id for _, planned in plans for p in planned]
            )
            there = _stored_exchanges(conn, plans, known)
        out: list[_PendingEntry] = []
        for entry, planned in plans:
            try:
                _check_ids(planned, there)
                new = [p for p in planned if p.id not in known]
                built = self._builder.build_turns(
                    new,
                    now,
                    partial(lambda entry, share: follow(entry, BUILT_SHARE * share), entry),
                )
            except TrajectoryRefused as problem:
                report.add_refusal(entry, problem)
                continue
            out.append(_PendingEntry(entry=entry, planned=planned, known=known, built=built))
        return out

    def _score_entries(
        self, ready: Sequence[_PendingEntry], report: ImportReport, follow: EntryProgress
    ) -> list[_PendingEntry]:
        """Fill in missing log-probabilities with those of the head, at temperature 1."""
        unscored = [turn for entry in ready for turn in entry.built if turn.needs_score]
        report.counts.tokenised += len(unscored)
        if not unscored:
            return list(ready)
        if self._wants_scores:
            done = self._score_turns(unscored, lambda part: _report_scoring(ready, follow, part))
            report.counts.scored += len(unscored)
        else:
            done = [_mark_unscored(turn) for turn in unscored]
        by_id = {turn.request.id: turn for turn in done}
        return [_with_scored(entry, by_id) for entry in ready]

    def _score_turns(
        self, turns: Sequence[BuiltTurn], follow: Callable[[float], None]
    ) -> list[BuiltTurn]:
        """Return the turns with their log-probabilities. `follow` gets the part of them that is scored."""
        self._scorer = self._scorer or self._load_scorer()
        rows = [(turn.request.prompt_ids, turn.reply.response_ids) for turn in turns]
        scores = self._scorer.score(rows, lambda count: follow(count / len(rows)))
        return [_with_logprobs(turn, score) for turn, score in zip(turns, scores, strict=True)]

    def _write_entries(
        self,
        ready: Sequence[_PendingEntry],
        report: ImportReport,
        now: float,
        follow: EntryProgress,
    ) -> None:
        """Write the turns in transactions of `LONGEST_TRANSACTION`. Whatever can be computed before them is.

        The last turn is written in a durable one, before which the disk has all the others.
        """
        waiting = deque(self._make_writer(pending, now, follow) for pending in ready)
        turns_left = sum(writer.size for writer in waiting)
        while waiting:
            is_last = turns_left == 1
            with self._store.write(durable=is_last) as conn:
                deadline = time.monotonic() + LONGEST_TRANSACTION
                has_time = True
                while has_time:
                    writer = waiting[0]
                    writer.write_turn(conn)
                    turns_left -= 1
                    if writer.is_complete:
                        waiting.popleft()
                        report.counts.count_trajectory(
                            turns=writer.new_turns, of=writer.size, news=writer.has_news
                        )
                    has_time = turns_left > 1 and time.monotonic() < deadline

    def _make_writer(
        self, pending: _PendingEntry, now: float, follow: EntryProgress
    ) -> EntryWriter:
        def report_share(share: float) -> None:
            follow(pending.entry, SCORED_SHARE + (1 - SCORED_SHARE) * share)

        outcomes = [self._builder.turn_outcome(turn, now) for turn in pending.planned]
        return EntryWriter(outcomes, pending.built, now=now, on_progress=report_share)


def _resolve_entries(
    group: Sequence[TrajectoryEntry], report: ImportReport
) -> list[_ResolvedEntry]:
    out: list[_ResolvedEntry] = []
    for entry in group:
        report.counts.read += 1
        try:
            out.append((entry, resolve_turns(entry.parse_trajectory())))
        except TrajectoryRefused as problem:
            report.add_refusal(entry, problem)
    return out


def _disjoint_runs(plans: Sequence[_ResolvedEntry]) -> Iterator[list[_ResolvedEntry]]:
    """Yield runs of consecutive entries without a common turn, so that each run finds earlier turns in the store."""
    wave: list[_ResolvedEntry] = []
    ids: set[str] = set()
    for entry, planned in plans:
        turn_ids = {p.id for p in planned}
        if wave and turn_ids & ids:
            yield wave
            wave = []
            ids = set()
        wave.append((entry, planned))
        ids |= turn_ids
    if wave:
        yield wave


def group_entries(entries: Iterable[TrajectoryEntry]) -> Iterator[list[TrajectoryEntry]]:
    """Yield the entries in groups of bounded size."""
    group: list[TrajectoryEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.raw)
        if len(group) >= GROUP_SIZE or size >= GROUP_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _stored_exchanges(
    conn: Connection, plans: Sequence[_ResolvedEntry], known: Mapping[str, imported_turns.KnownTurn]
) -> dict[str, Exchange]:
    """Return the stored exchanges whose ids the files give, without damaged ones."""
    ids = []
    for _, planned in plans:
        ids += [turn.id for turn in planned if turn.turn.id is not None and turn.id in known]
    size = imported_turns.MAX_IDS_PER_QUERY
    stored: dict[str, Exchange] = {}
    for at in range(0, len(ids), size):
        stored |= exchanges.get_readable(conn, ids[at : at + size])
    return stored


def _check_ids(planned: Sequence[ResolvedTurn], there: Mapping[str, Exchange]) -> None:
    """Raise `TrajectoryRefused` if an id of the file belongs to a stored turn with other messages."""
    for p in planned:
        before = there.get(p.id)
        if before is None or before.reply is None:
            continue
        stored = list(before.request.messages), dict(before.reply.message)
        if stored != (list(p.messages), dict(p.reply)):
            raise TrajectoryRefused(
                "contradiction",
                f"id {p.id!r} is in the store with other text; omit the id",
                p.number,
            )


def _report_scoring(ready: Sequence[_PendingEntry], follow: EntryProgress, share: float) -> None:
    """Report the progress of scoring; `share` from 0 to 1."""
    for one in ready:
        follow(one.entry, BUILT_SHARE + (SCORED_SHARE - BUILT_SHARE) * share)


def _with_scored(entry: _PendingEntry, scored: Mapping[str, BuiltTurn]) -> _PendingEntry:
    built = [scored.get(turn.request.id, turn) for turn in entry.built]
    return replace(entry, built=built)


def _mark_unscored(built: BuiltTurn) -> BuiltTurn:
    return replace(built, place=replace(built.place, untrainable=imported_turns.UNSCORED))


def _with_logprobs(built: BuiltTurn, logprobs: Logprobs) -> BuiltTurn:
    reply = replace(built.reply, logprobs=np.asarray(logprobs, np.float32))
    return replace(built, reply=reply, place=replace(built.place, untrainable=None))


def score_unscored(config: Config, store: Store, progress: Callable[[int], None]) -> int:
    """Score every unscored turn with the head. Return their number.

    Raises `ModelError`, `IdentityMismatch`, `StoreError`; turns scored until then keep their scores.
    """
    files = ModelFiles.from_config(config.model)
    head = load_head(store, files, identify_model(store, files))
    scorer: LogprobScorer | None = None
    after = 0
    done = 0
    while True:
        with store.read() as conn:
            waiting = imported_turns.unscored_turns(conn, after=after, limit=GROUP_SIZE)
            exchanges_by_id = exchanges.get_readable(conn, [id_ for _, id_ in waiting])
        if not waiting:
            return done
        after = waiting[-1][0]
        scorer = scorer or load_scorer(config, files, head)
        readable: dict[int, Exchange] = {}
        for seq, id_ in waiting:
            if id_ in exchanges_by_id:
                readable[seq] = exchanges_by_id[id_]
        if not readable:
            continue
        _score_stored(store, readable, scorer, head.version)
        done += len(readable)
        progress(len(readable))


def _score_stored(
    store: Store, turns: Mapping[int, Exchange], scorer: LogprobScorer, version: int
) -> None:
    """Score stored turns, by their numbers, with this version, and store the scores."""
    rows = []
    for exchange in turns.values():
        assert exchange.reply is not None
        rows.append((exchange.request.prompt_ids, exchange.reply.response_ids))
    scores = scorer.score(rows, lambda _: None)
    with store.write() as conn:
        for seq, (_, response_ids), logprobs in zip(turns, rows, scores, strict=True):
            spans = to_json((Span(start=0, end=len(response_ids), version=version),))
            packed = pack_logprobs(logprobs)
            imported_turns.store_scores(conn, seq, logprobs=packed, spans=spans, version=version)
