"""Versions, leases and claims: who may publish, and which turns train whom, exactly once on every line."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from tests.store.world import close, judged, policy, serve, verdict

from openclaw_rl.errors import IdentityMismatch, StaleLease, StoreError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.status.report import collect_status
from openclaw_rl.store import events, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies, training_queue
from openclaw_rl.types import FinishReason, Lease, Policy, PolicyState, Use

TTL = 30.0


@pytest.fixture
def conn(store: Store) -> Iterator[Connection]:
    with store.write() as opened:
        policies.ensure_root(opened, base="base", identity="i", at=1.0)
        yield opened


def take(conn: Connection, holder: str = "me", now: float = 100.0) -> Lease:
    lease = leases.acquire(conn, "train", holder, TTL, now)
    assert lease is not None
    return lease


def uses_of(conn: Connection, version: int, *ids: str) -> list[Use]:
    counted = dict(conn.exec_driver_sql("SELECT id, uses FROM turns").all())
    return [Use(policy=version, turn=i, number=counted[i] + 1) for i in ids]


def claimed(
    conn: Connection,
    *,
    max_uses: int = 1,
    limit: int = 99,
    score: bool = True,
    hint: bool = True,
) -> list[str]:
    found = training_queue.trainable_turns(
        conn, limit=limit, max_uses=max_uses, need_score=score, need_hint=hint
    )
    return [j.turn.id for j in found]


def replayed(
    conn: Connection, *, max_uses: int = 2, limit: int = 99, skip: Sequence[str] = ()
) -> list[str]:
    found = training_queue.replay_turns(
        conn, limit=limit, max_uses=max_uses, need_score=True, need_hint=True, skip=skip
    )
    return [j.turn.id for j in found]


# --- leases ------------------------------------------------------------------------------------------------------


def test_a_lease_has_one_holder_at_a_time(conn: Connection) -> None:
    mine = take(conn)
    assert mine == Lease(name="train", holder="me", epoch=1, expires_at=130.0)
    assert leases.acquire(conn, "train", "you", TTL, 129.9) is None
    assert leases.acquire(conn, "other job", "you", TTL, 101.0) is not None
    mine = leases.renew(conn, mine, TTL, 120.0)
    assert leases.acquire(conn, "train", "you", TTL, 149.9) is None
    yours = take(conn, "you", 150.0)
    assert yours.epoch == 2
    with pytest.raises(StaleLease, match="you holds epoch 2"):
        leases.renew(conn, mine, TTL, 151.0)
    leases.release(conn, mine)
    assert leases.acquire(conn, "train", "me", TTL, 152.0) is None, (
        "a stale holder releases nothing"
    )
    leases.release(conn, yours)
    assert take(conn, "me", 152.0).epoch == 3


def test_a_restarted_holder_fences_off_its_earlier_lease(conn: Connection) -> None:
    old, new = take(conn), take(conn)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(StaleLease):
        leases.check(conn, old, 101.0)


# --- versions ----------------------------------------------------------------------------------------------------


def test_the_root_version_belongs_to_one_model(conn: Connection) -> None:
    root = policies.ensure_root(conn, base="moved elsewhere", identity="i", at=2.0)
    assert (root.version, root.state, root.path, root.created_at) == (
        0,
        PolicyState.LIVE,
        None,
        1.0,
    )
    with pytest.raises(IdentityMismatch, match=r"belongs to base.*Set model.path back"):
        policies.ensure_root(conn, base="another", identity="j", at=3.0)


def test_reading_the_head_before_the_root_raises(store: Store) -> None:
    with store.read() as conn, pytest.raises(StoreError, match="no policy version yet"):
        policies.head(conn)


def test_publishing_moves_the_head(conn: Connection) -> None:
    judged(conn, "a")
    lease = take(conn)
    made = policy(1, 0)
    policies.publish(conn, lease, made, uses_of(conn, 1, "a"), 101.0)
    assert policies.head(conn) == replace(made, state=PolicyState.LIVE)
    assert policies.uses_of_version(conn, 1) == [Use(policy=1, turn="a", number=1)]
    assert (policies.lineage(conn, 1), policies.lineage(conn, 7), policies.next_version(conn)) == (
        [1, 0],
        [],
        2,
    )
    assert events.read_after(conn, 0, 99)[-1].kind == "policy.live"
    assert claimed(conn) == []


@pytest.mark.parametrize(
    ("lease_change", "policy_change", "now", "error", "words"),
    [
        ({"epoch": 9}, {}, 101.0, StaleLease, "me holds epoch 1"),
        ({"holder": "you"}, {}, 101.0, StaleLease, "me holds epoch 1"),
        ({"name": "nobody's"}, {}, 101.0, StaleLease, "nobody holds it"),
        ({}, {}, 130.0, StaleLease, "it expired"),
        ({}, {"parent": 7}, 101.0, StaleLease, "the head is now 0"),
        ({}, {"version": 3}, 101.0, ValueError, "expected policy 3 and number 1"),
    ],
)
def test_publishing_needs_the_lease(
    store: Store,
    lease_change: dict[str, object],
    policy_change: dict[str, object],
    now: float,
    error: type[Exception],
    words: str,
) -> None:
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        judged(conn, "a")
        lease = replace(take(conn), **lease_change)
        before = events.last_seq(conn)
        uses = uses_of(conn, 1, "a")
    made = replace(policy(1, 0), **policy_change)
    with pytest.raises(error, match=words), store.write() as conn:
        policies.publish(conn, lease, made, uses, now)
    with store.read() as conn:
        assert len(policies.list_all(conn)) == 1
        assert (policies.head(conn).version, events.last_seq(conn)) == (0, before)
        assert claimed(conn) == ["a"], "the batch is free again"


def test_a_renewed_lease_publishes_after_its_first_time(conn: Connection) -> None:
    first = take(conn)
    leases.renew(conn, first, TTL, 120.0)
    policies.publish(conn, first, policy(1, 0), [], 140.0)
    assert policies.head(conn).version == 1


def test_a_wrong_use_number_is_refused(conn: Connection) -> None:
    judged(conn, "a")
    with pytest.raises(ValueError, match="number 1, got policy 1 and number 2"):
        policies.publish(conn, take(conn), policy(1, 0), [Use(policy=1, turn="a", number=2)], 101.0)


def test_rejecting_keeps_the_head(conn: Connection) -> None:
    judged(conn, "a")
    lease = take(conn)
    policies.reject(
        conn, lease, replace(policy(1, 0), reason="KL 9 > 5"), uses_of(conn, 1, "a"), 101.0
    )
    found = policies.get(conn, 1)
    assert found is not None
    assert (found.state, found.reason, policies.head(conn).version) == (
        PolicyState.REJECTED,
        "KL 9 > 5",
        0,
    )
    assert claimed(conn) == ["a"], "tried once more"
    policies.reject(conn, lease, policy(2, 0), uses_of(conn, 2, "a"), 102.0)
    assert claimed(conn) == [], "and then left alone"
    with pytest.raises(StaleLease):
        policies.reject(conn, replace(lease, epoch=0), policy(3, 0), [], 103.0)


def test_a_rollback_moves_the_head_and_marks_versions(conn: Connection) -> None:
    lease = take(conn)
    for version, id_ in enumerate("abc", 1):
        judged(conn, id_)
        policies.publish(
            conn, lease, policy(version, version - 1), uses_of(conn, version, id_), 101.0
        )
    assert claimed(conn) == []
    head = head_moves.roll_back(conn, to=1, reason="satisfaction fell", at=110.0)
    assert head.version == policies.head(conn).version == 1
    assert [(p.version, p.state.value) for p in policies.list_all(conn)] == [
        (0, "live"),
        (1, "live"),
        (2, "rolled_back"),
        (3, "rolled_back"),
    ]
    assert claimed(conn) == ["b", "c"], "the turns of what was rolled back are free"
    with pytest.raises(StaleLease, match="the head is now 1"):
        policies.publish(conn, lease, policy(4, 3), [], 111.0)
    policies.publish(conn, lease, policy(4, 1), uses_of(conn, 4, "b"), 112.0)
    assert (policies.lineage(conn, 4), claimed(conn)) == ([4, 1, 0], ["c"])
    for bad in (4, 2, 9):
        with pytest.raises(
            ValueError, match=r"expected an ancestor of the head 4, one of \[1, 0\]"
        ):
            head_moves.roll_back(conn, to=bad, reason="x", at=113.0)


# --- claims ------------------------------------------------------------------------------------------------------


def test_only_turns_with_a_signal_for_the_method_are_queued(conn: Connection) -> None:
    judged(conn, "score", score=-1)
    judged(conn, "hint", score=None, hints=("h",))
    judged(conn, "neutral", score=0)
    judged(conn, "cut", score=1, finish_reason=FinishReason.LENGTH)
    judged(conn, "cut, hinted", score=1, hints=("h",), finish_reason=FinishReason.LENGTH)
    assert claimed(conn, hint=False) == ["score"]
    assert claimed(conn, score=False) == ["hint", "cut, hinted"]
    assert claimed(conn) == ["score", "hint", "cut, hinted"]
    assert claimed(conn, limit=2) == ["score", "hint"]
    assert claimed(conn, score=False, hint=False) == []


def test_queued_turns_are_complete(conn: Connection) -> None:
    judged(conn, "a", hints=("h",))
    (found,) = training_queue.trainable_turns(
        conn, limit=1, max_uses=1, need_score=True, need_hint=False
    )
    assert found.exchange.request.prompt_ids.tolist() == [1, 2, 3, 2**31 - 1]
    assert (found.verdict, found.earlier_uses) == (verdict("a", hints=("h",)), 0)


def test_untrainable_turns_are_not_queued(conn: Connection) -> None:
    for id_ in ("reopened", "stale", "side"):
        judged(conn, id_)
    serve(conn, "served")
    close(conn, "reopened", "No!")
    turns.mark_untrainable(conn, {"stale": Reason(ReasonCode.TOO_STALE, "too stale")})
    conn.exec_driver_sql("UPDATE turns SET kind = 'side' WHERE id = 'side'")
    assert claimed(conn) == []


def test_a_turn_is_replayed_once(conn: Connection) -> None:
    lease = take(conn)
    for id_ in "abc":
        judged(conn, id_)
    assert replayed(conn) == [], "what was never used is not used again"
    policies.publish(conn, lease, policy(1, 0), uses_of(conn, 1, "a", "b"), 101.0)
    assert (claimed(conn, max_uses=2), replayed(conn)) == (["c"], ["a", "b"])
    assert replayed(conn, max_uses=1) == []
    policies.publish(conn, lease, policy(2, 1), uses_of(conn, 2, "c", "b"), 102.0)
    assert [(u.turn, u.number) for u in policies.uses_of_version(conn, 2)] == [("c", 1), ("b", 2)]
    assert (claimed(conn, max_uses=2), replayed(conn)) == ([], ["a", "c"])


def test_a_rollback_restores_both_uses(conn: Connection) -> None:
    lease = take(conn)
    judged(conn, "a")
    for version in (1, 2):
        policies.publish(
            conn, lease, policy(version, version - 1), uses_of(conn, version, "a"), 101.0
        )
    head_moves.roll_back(conn, to=1, reason="x", at=102.0)
    assert (claimed(conn, max_uses=2), replayed(conn)) == ([], ["a"]), "its second use is undone"
    policies.publish(conn, lease, policy(3, 1), uses_of(conn, 3, "a"), 103.0)
    assert replayed(conn) == []
    head_moves.roll_back(conn, to=1, reason="x", at=104.0)
    assert replayed(conn) == [], "it is not tried for ever"


def test_a_turn_with_both_uses_rolled_back_is_fresh_again(conn: Connection) -> None:
    lease = take(conn)
    judged(conn, "a")
    for version in (1, 2):
        policies.publish(
            conn, lease, policy(version, version - 1), uses_of(conn, version, "a"), 101.0
        )
    head_moves.roll_back(conn, to=0, reason="x", at=102.0)
    assert (claimed(conn, max_uses=2), replayed(conn)) == (["a"], [])
    policies.publish(conn, lease, policy(3, 0), uses_of(conn, 3, "a"), 103.0)
    assert (claimed(conn, max_uses=2), replayed(conn)) == ([], [])


def test_a_turn_is_dropped_after_two_rejections_also_with_replay(conn: Connection) -> None:
    lease = take(conn)
    judged(conn, "a")
    judged(conn, "b")
    policies.publish(conn, lease, policy(1, 0), uses_of(conn, 1, "a"), 101.0)
    for version in (2, 3):
        assert (claimed(conn, max_uses=2), replayed(conn)) == (["b"], ["a"])
        policies.reject(conn, lease, policy(version, 1), uses_of(conn, version, "a", "b"), 102.0)
    assert (claimed(conn, max_uses=2), replayed(conn)) == ([], [])


@dataclass
class Model:
    """Plain Python: what the rules say about claims."""

    parents: dict[int, int | None]
    used: list[tuple[int, str]]
    judged: list[str]
    rejected: set[int] = field(default_factory=set)

    def line(self, head: int) -> list[int]:
        line: list[int] = []
        at: int | None = head
        while at is not None:
            line.append(at)
            at = self.parents[at]
        return line

    def uses(self, turn: str, versions: Collection[int]) -> int:
        return sum(t == turn and p in versions for p, t in self.used)

    def _may(self, turn: str, max_uses: int) -> bool:
        return (
            self.uses(turn, self.parents) <= max_uses
            and self.uses(turn, self.rejected) < training_queue.MAX_REJECTED_USES
        )

    def _may_be_fresh(self, turn: str, max_uses: int) -> bool:
        sizes = [sum(p == v for p, _ in self.used) for v in self.rejected if (v, turn) in self.used]
        return self.uses(turn, set(self.parents) - self.rejected) <= max_uses and len(
            set(sizes)
        ) == len(sizes)

    def claimable(self, head: int, max_uses: int) -> list[str]:
        line = self.line(head)
        return [
            turn
            for turn in self.judged
            if self.uses(turn, line) == 0 and self._may_be_fresh(turn, max_uses)
        ]

    def replayable(self, head: int, max_uses: int) -> list[str]:
        line = self.line(head)
        return [
            turn
            for turn in self.judged
            if 0 < self.uses(turn, line) < max_uses and self._may(turn, max_uses)
        ]


acts = st.lists(
    st.tuples(
        st.sampled_from(["judge", "judge", "publish", "publish", "reject", "roll back"]),
        st.integers(0, 5),
    ),
    max_size=14,
)
_runs = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(tmp_path_factory.mktemp("claims") / "store.db")
    yield opened
    opened.close()


@given(acts, st.sampled_from([1, 2]))
@settings(max_examples=50, deadline=None)
def test_queue_selection_holds_on_random_lineages(
    folder: Store, script: list[tuple[str, int]], max_uses: int
) -> None:
    """Against the plain reference; and no line ever uses a turn more often than it may."""
    run = next(_runs)
    model = Model({0: None}, [], [])
    with folder.write() as conn, conn.begin_nested() as undo:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = take(conn)
        head = 0
        for n, (what, choice) in enumerate(script):
            if what == "judge":
                model.judged.append(f"{run}-{n}")
                judged(conn, model.judged[-1])
            elif what == "roll back":
                line = policies.lineage(conn, head)
                if len(line) > 1:
                    head = line[1 + choice % (len(line) - 1)]
                    head_moves.roll_back(conn, to=head, reason="x", at=101.0)
            else:
                batch = claimed(conn, max_uses=max_uses)[: 1 + choice]
                batch += replayed(conn, max_uses=max_uses, limit=choice)
                version = policies.next_version(conn)
                made: Policy = policy(version, head)
                act = policies.publish if what == "publish" else policies.reject
                act(conn, lease, made, uses_of(conn, version, *batch), 101.0)
                model.parents[version] = head
                model.used += [(version, turn) for turn in batch]
                model.rejected |= {version} if what == "reject" else set()
                head = version if what == "publish" else head
            assert claimed(conn, max_uses=max_uses) == model.claimable(head, max_uses)
            again = model.replayable(head, max_uses)
            assert replayed(conn, max_uses=max_uses) == again
            assert replayed(conn, max_uses=max_uses, limit=2) == again[-2:], "the newest"
            assert replayed(conn, max_uses=max_uses, skip=again[:2]) == again[2:]
        undo.rollback()
    for at in model.parents:
        line = model.line(at)
        on_line = [turn for version, turn in model.used if version in line]
        assert max(map(on_line.count, on_line), default=0) <= max_uses


def test_an_automatic_rollback_is_shown_after_a_manual_move_of_another_policy(
    conn: Connection,
) -> None:
    lease = take(conn)
    for version, name in ((1, "agent:ann"), (2, "agent:bob")):
        policies.publish(conn, lease, replace(policy(version, 0), name=name), [], 100.0)
    head_moves.roll_back(
        conn, to=0, reason="satisfaction fell", at=101.0, automatic=True, name="agent:ann"
    )
    head_moves.roll_back(conn, to=0, reason="by hand", at=102.0, name="agent:bob")
    shown = collect_status(conn, 103.0)["automatic_rollback"]
    assert (shown["reason"], shown["left"]) == ("satisfaction fell", [1])
    head_moves.promote(conn, to=1, reason="by hand", at=104.0)
    assert collect_status(conn, 105.0)["automatic_rollback"] is None
