"""The questions that `benchmarks.growth` measures, by the functions of the product that ask them.

Each prepares its question, and asks it once in `with watch:`. What changes the home is done in a transaction that is
aborted, or at the end of the list.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType

from benchmarks.growth_home import (
    BATCH,
    NEWEST_AT,
    SCOPE,
    USERS,
    HomeSpec,
    add_waiting_turns,
    newest_of_agent,
)
from benchmarks.growth_plans import StatementRecorder
from benchmarks.home_turns import NO_TRANSIENT_TEXT, TurnWriter
from sqlalchemy import Connection

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.versions.stored_heads import StoredHeads
from openclaw_rl.settings.load import STARTER, CollectConfig, SignalsConfig, train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.status.inspect import session_rows
from openclaw_rl.status.learned import collect_learned
from openclaw_rl.status.policy_report import policy_rows
from openclaw_rl.status.report import collect_status
from openclaw_rl.store import exchanges, leases, sessions
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, training_queue
from openclaw_rl.store.lineage.live_scores import newest_people, newest_scores
from openclaw_rl.store.lineage.policy_names import owner_filter, waiting_names
from openclaw_rl.testing.trainer import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.satisfaction_watch import MAX_SCORES, SatisfactionWatch, find_wide_fall
from openclaw_rl.train.undo import plan_undos, select_turns
from openclaw_rl.train.version_thinning import VersionThinner
from openclaw_rl.types import JudgedTurn

_SETTINGS = {"method": "binary", "batch.min_turns": BATCH, "batch.max_turns": BATCH}
_TRAIN = train_settings(_SETTINGS | {"batch.max_wait": 1e9})
# Iterations until a step is taken.
_MAX_ITERATIONS = 8


class Bound(StrEnum):
    """How much of the cost in the smallest home a question may cost in a larger one."""

    HOT = "hot"
    """At most `HOT_FACTOR` times."""
    REPORT = "report"
    """At most `REPORT_FACTOR` times, and `REPORT_MS`."""
    STEP = "step"
    """At most `STEP_MS` in the home of many versions."""
    START = "start"
    """At most `START_MS` in the home of many versions."""
    NONE = "none"


class Stopwatch:
    """Measures the processor time of its blocks, records their statements, and ends statements that take too long."""

    def __init__(self, recorder: StatementRecorder, limit: float) -> None:
        """`limit`: seconds of a block."""
        self.seconds: list[float] = []
        self.limit = limit
        self._recorder = recorder
        self._began = math.inf

    def is_late(self) -> bool:
        """Return whether the block that runs now has reached the limit."""
        return time.process_time() - self._began > self.limit

    def __enter__(self) -> None:
        self._recorder.is_on = True
        self._began = time.process_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds.append(time.process_time() - self._began)
        self._began = math.inf
        self._recorder.is_on = False


class GrowthHome:
    """An open home, and the agent whose policy is asked about."""

    def __init__(self, folder: Path, spec: HomeSpec) -> None:
        self.spec = spec
        self.root = folder / "policies"
        self.store = Store.open(folder / "store.db", create=False)
        self.agent = spec.agents[0]
        self.name = spec.policy_of(self.agent)
        self.owner = owner_filter(spec.per, self.name)

    def close(self) -> None:
        self.store.close()

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(ModelFiles.from_path(STARTER))

    @contextlib.contextmanager
    def aborted_write(self) -> Iterator[Connection]:
        """Open a transaction that changes nothing."""
        with contextlib.suppress(_Aborted), self.store.write() as conn:
            yield conn
            raise _Aborted

    def claim(self, conn: Connection, limit: int) -> list[JudgedTurn]:
        """Return the next turns that the policy is trained on."""
        return training_queue.trainable_turns(
            conn,
            limit=limit,
            max_uses=1,
            need_score=True,
            need_hint=False,
            owner=self.owner,
        )

    def make_loop(self) -> TrainLoop:
        """Return a training loop whose steps compute nothing."""
        builder = SampleBuilder(
            renderer=self.renderer,
            transient=NO_TRANSIENT_TEXT,
            signal=make_method(_TRAIN),
            max_staleness=_TRAIN.safety.max_staleness,
        )
        parts = LoopParts(
            per=self.spec.per,
            watch=SatisfactionWatch(self.store, GateConfig(), self.spec.per),
            clock=lambda: NEWEST_AT,
        )
        return TrainLoop(self.store, ScriptedTrainer(), builder, _TRAIN, self.root, parts)


class _Aborted(Exception):
    """Ends a transaction without a commit."""


Measure = Callable[[GrowthHome, Stopwatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question. `covers`: what the figure includes."""

    name: str
    bound: Bound
    covers: str
    measure: Measure


def _claim(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        claimed = home.claim(conn, BATCH)
    assert len(claimed) == BATCH, f"expected {BATCH} turns, got {len(claimed)}"


def _claim_nothing(home: GrowthHome, watch: Stopwatch) -> None:
    with home.aborted_write() as conn:
        waiting = [turn.turn.id for turn in home.claim(conn, home.spec.turns)]
        head = policies.head(conn, home.name)
        version = policies.next_version(conn)
        lease = leases.acquire(conn, TRAINER_LEASE, "growth", 1.0, 1e12)
        assert lease is not None, "the lease of every other holder has expired by then"
        child = replace(head, version=version, parent=head.version, path=None, files={})
        uses = training_queue.next_uses(conn, version, waiting)
        policies.publish(conn, lease, child, uses, NEWEST_AT, lease_now=1e12)
        with watch:
            claimed = home.claim(conn, BATCH)
    assert not claimed, f"expected no turns, got {len(claimed)}"


def _waiting_names(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        waiting_names(conn, home.spec.per)


def _replays(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        training_queue.replay_turns(
            conn,
            limit=BATCH,
            max_uses=2,
            need_score=True,
            need_hint=False,
            owner=home.owner,
        )


def _watch_one(home: GrowthHome, watch: Stopwatch) -> None:
    gate = GateConfig()
    with home.store.read() as conn:
        head = policies.head(conn, home.name).version
        with watch:
            move = policy_marks.last_head_move(conn, home.name)
            after = 0 if move is None else move.after
            scores = newest_scores(conn, head, after=after, limit=MAX_SCORES, owner=home.owner)
            people = newest_people(conn, head, after=after, owner=home.owner)
            is_shared = len(people) > 1
            find_wide_fall(scores, max_fall=gate.max_fall, error=gate.error, is_shared=is_shared)


def _watch_all(home: GrowthHome, watch: Stopwatch) -> None:
    satisfaction = SatisfactionWatch(home.store, GateConfig(), home.spec.per)
    now = time.time()
    with home.store.write() as conn:
        lease = leases.acquire(conn, TRAINER_LEASE, "growth", 3600.0, now)
    assert lease is not None, "no trainer runs on this home"
    try:
        with watch:
            satisfaction.roll_back_if_worse(lease, lambda: now)
    finally:
        with home.store.write() as conn:
            leases.release(conn, lease)


def _thin(home: GrowthHome, watch: Stopwatch) -> None:
    thinner = VersionThinner(home.store, home.root, _TRAIN.checkpoint)
    with watch:
        thinner.thin_versions(NEWEST_AT)


def _roll_back(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn:
        plan = plan_rollback(conn, None, name=home.name)
    with home.aborted_write() as conn, watch:
        apply_rollback(conn, plan, learn_again=False, reason="measured")


def _plan_undo(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn:
        head = policies.head(conn, home.name).version
        newest = policies.uses_of_version(conn, head)[-1].turn
        with watch:
            plan_undos(conn, select_turns(conn, ids=[newest]))


def _status(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        collect_status(conn, NEWEST_AT)


def _learned(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn:
        version = policies.head(conn, home.name).version
        with watch:
            collect_learned(conn, None, version=version, limit=10)


def _list_policies(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        policy_rows(conn, 20)


def _list_sessions(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn, watch:
        session_rows(conn, 20)


def _poll_heads(home: GrowthHome, watch: Stopwatch) -> None:
    heads = StoredHeads(home.store, GatewayMetrics(), lambda: True)
    heads.refresh({})
    with watch:
        heads.refresh({})


def _link_known(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn:
        newest = exchanges.get(conn, newest_of_agent(conn, home.agent))
    assert newest is not None, "the agent has turns"
    assert newest.reply is not None, "it has ended"
    question = {"role": "user", "content": "Great, that is what I wanted. Next question."}
    history = [*newest.request.messages, newest.reply.message, question]
    _link(home, watch, history, newest.request.user)


def _link_new(home: GrowthHome, watch: Stopwatch) -> None:
    with home.store.read() as conn:
        number = sessions.newest_turn_number(conn)
    _link(home, watch, [{"role": "user", "content": f"Hello, question {number}."}], USERS[0])


def _link(
    home: GrowthHome, watch: Stopwatch, history: Sequence[dict[str, object]], user: str
) -> None:
    """Let the collector link one request, which has no name of a session."""
    collector = Collector(home.store, CollectConfig(), SignalsConfig())
    while collector.step():
        pass
    with home.store.read() as conn:
        number = sessions.newest_turn_number(conn)
        head = policies.head(conn, home.name)
    writer = TurnWriter(store=home.store, scope=SCOPE, identity=head.identity, number=number)
    request = writer.request(
        history,
        writer.mark(history, ()),
        agent=home.agent,
        user=user,
        version=head.version,
        at=NEWEST_AT + number,
    )
    call = writer.call(request, None, None, None)
    with home.store.write() as conn:
        exchanges.admit(conn, [request])
    with watch:
        count = collector.step()
    assert count == 1, f"expected one event, got {count}"
    with home.store.write() as conn:
        exchanges.finish(conn, [call.reply])


def _step(home: GrowthHome, watch: Stopwatch) -> None:
    add_waiting_turns(home.store, home.spec, home.agent, 3 * BATCH)
    loop = home.make_loop()
    try:
        # The first iteration looks at all heads.
        loop.run_once()
        before = _newest_version(home)
        with watch:
            for _ in range(_MAX_ITERATIONS):
                loop.run_once()
                if _newest_version(home) > before:
                    break
        assert _newest_version(home) > before, f"no step was taken: {loop.note}"
    finally:
        loop.close()


def _first_iteration(home: GrowthHome, watch: Stopwatch) -> None:
    add_waiting_turns(home.store, home.spec, home.agent, 2 * BATCH)
    loop = home.make_loop()
    try:
        with watch:
            loop.run_once()
    finally:
        loop.close()


def _newest_version(home: GrowthHome) -> int:
    with home.store.read() as conn:
        return policies.next_version(conn) - 1


ROWS = (
    Row(name="claim", bound=Bound.HOT, covers="16 turns of one policy, read whole", measure=_claim),
    Row(
        name="claim, nothing waits",
        bound=Bound.HOT,
        covers="the same after a version has used them all",
        measure=_claim_nothing,
    ),
    Row(
        name="waiting names",
        bound=Bound.NONE,
        covers="names of all policies with turns to train on",
        measure=_waiting_names,
    ),
    Row(
        name="replay look-up",
        bound=Bound.HOT,
        covers="16 replays of one policy, `max_uses` 2, read whole",
        measure=_replays,
    ),
    Row(
        name="watch, one head",
        bound=Bound.HOT,
        covers="newest scores and people of one policy, and the tests on them",
        measure=_watch_one,
    ),
    Row(
        name="watch, all heads",
        bound=Bound.NONE,
        covers="the first look after a start",
        measure=_watch_all,
    ),
    Row(
        name="thinning",
        bound=Bound.HOT,
        covers="`thin_versions` when nothing is surplus, with its reads of folders",
        measure=_thin,
    ),
    Row(
        name="rollback's transaction",
        bound=Bound.HOT,
        covers="`apply_rollback` to the parent, within the write lock",
        measure=_roll_back,
    ),
    Row(
        name="head poll",
        bound=Bound.HOT,
        covers="`StoredHeads.refresh` of a gateway after a commit",
        measure=_poll_heads,
    ),
    Row(
        name="undo plan",
        bound=Bound.REPORT,
        covers="of the newest turn that trained the policy",
        measure=_plan_undo,
    ),
    Row(name="status", bound=Bound.REPORT, covers="`collect_status`", measure=_status),
    Row(name="learned", bound=Bound.REPORT, covers="10 versions of one policy", measure=_learned),
    Row(name="policies list", bound=Bound.REPORT, covers="20 versions", measure=_list_policies),
    Row(name="inspect sessions", bound=Bound.REPORT, covers="20 sessions", measure=_list_sessions),
    Row(
        name="link, known session",
        bound=Bound.HOT,
        covers="the collector's step on one request that continues a conversation",
        measure=_link_known,
    ),
    Row(
        name="link, new session",
        bound=Bound.HOT,
        covers="the collector's step on the first request of one",
        measure=_link_new,
    ),
    Row(
        name="step",
        bound=Bound.STEP,
        covers="from the choice of a policy to the publication, with a trainer that computes nothing",
        measure=_step,
    ),
    Row(
        name="first iteration",
        bound=Bound.START,
        covers="the same after a start of the trainer, with the watch's first look",
        measure=_first_iteration,
    ),
)
