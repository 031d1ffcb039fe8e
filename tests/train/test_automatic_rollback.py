"""The trainer's loop on a real store: a version that displeases is rolled back, once, with its reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.common.policy_digest import ADAPTER_WEIGHTS
from openclaw_rl.settings.load import train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, version_files
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.satisfaction_watch import SETTLING_TURNS, SatisfactionWatch
from openclaw_rl.types import JudgedTurn, Kind, PolicyState, TurnState

Fill = Callable[..., list[str]]
MakeLoop = Callable[..., TrainLoop]
REASON = "satisfaction fell from 1.00 of 16 turns under versions 0 to 1 to 0.00 of 12 turns under version 2"


@pytest.fixture
def make_loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[MakeLoop]:
    opened = []

    def make(**gate: object) -> TrainLoop:
        train = train_settings({"batch.min_turns": 8, "batch.max_turns": 8, "batch.max_wait": 1e9})
        watch = SatisfactionWatch(store, GateConfig.model_validate(gate))
        opened.append(
            TrainLoop(
                store,
                ScriptedTrainer(),
                builder,
                train,
                tmp_path / "policies",
                LoopParts(watch=watch),
            )
        )
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def answered_by(version: int, **more: object) -> dict[str, object]:
    return {"request": {"version": version, **more}}


def run_until_idle(loop: TrainLoop) -> None:
    while loop.run_once():
        pass


def learn_two_versions(store: Store, loop: TrainLoop, fill: Fill) -> list[str]:
    """Publish versions 1 and 2, with satisfied people so far. Return the turns that version 2 was trained on."""
    fill(store, 8, **answered_by(0))
    run_until_idle(loop)
    taught = fill(store, 8, **answered_by(1))
    run_until_idle(loop)
    assert head_of(store) == 2
    return taught


def head_of(store: Store) -> int:
    with store.read() as conn:
        return policies.head(conn).version


def test_a_version_that_displeases_is_rolled_back_automatically(
    store: Store, make_loop: MakeLoop, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make_loop()
    taught = learn_two_versions(store, loop, fill)
    with caplog.at_level(logging.ERROR, logger="openclaw_rl"):
        fill(store, 12, score=-1, **answered_by(2))
        assert loop.run_once()
    assert head_of(store) == 1
    assert f"rolled back to version 1 by itself: {REASON}" in caplog.text
    with store.read() as conn:
        bad, move = policies.get(conn, 2), policy_marks.last_head_move(conn)
        event = events.read_after(conn, 0, 999, ["policy.rolled_back"])[0]
        fates = {(turn.state, turn.reason) for id_ in taught if (turn := turns.get(conn, id_))}
    assert bad is not None
    assert (bad.state, bad.reason) == (PolicyState.ROLLED_BACK, REASON)
    assert move is not None
    assert (move.old, move.to, move.left, move.automatic) == (2, 1, [2], True)
    assert dict(event.data) == {
        "versions": [2],
        "reason": REASON,
        "code": "satisfaction fell",
        "automatic": True,
    }
    assert fates == {
        (TurnState.DROPPED, "the version trained on it was rolled back (to version 1)")
    }


def test_a_version_with_degenerate_replies_is_rolled_back_without_feedback(
    store: Store, make_loop: MakeLoop, fill: Fill, judged: Callable[..., JudgedTurn]
) -> None:
    """Such replies are dropped when they end, and never get a verdict."""
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    for _ in range(12):
        item = judged(**answered_by(2), words="Paris. " * 40)
        assert item.exchange.reply is not None
        with store.write() as conn:
            exchanges.admit(conn, [item.exchange.request])
            exchanges.finish(conn, [item.exchange.reply])
            turn = turns.get(conn, item.turn.id)
            assert turn is not None
            assert turn.reason is not None
            assert turn.reason.startswith("degenerate reply")
    assert loop.run_once()
    assert head_of(store) == 1
    with store.read() as conn:
        bad = policies.get(conn, 2)
    assert bad is not None
    assert bad.reason == REASON


def test_the_next_step_waits_for_turns_to_compare_with(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    fill(store, 12, score=-1, **answered_by(2))
    run_until_idle(loop)
    fill(store, SETTLING_TURNS - 1, **answered_by(1))
    run_until_idle(loop)
    assert head_of(store) == 1
    assert loop.note.startswith("15 of 16 scored turns since the automatic rollback to version 1")
    fill(store, 1, **answered_by(1))
    run_until_idle(loop)
    assert head_of(store) > 2


def test_turns_before_a_rollback_do_not_count_after_it(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Whatever displeases from now on, no rollback goes below the target of the one before."""
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    fill(store, 12, score=-1, **answered_by(2))
    run_until_idle(loop)
    for _ in range(4):
        fill(store, 16, score=-1, **answered_by(head_of(store)))
        run_until_idle(loop)
    with store.read() as conn:
        rolled_back = [
            p.version for p in policies.list_all(conn) if p.state is PolicyState.ROLLED_BACK
        ]
    assert rolled_back == [2]


@pytest.mark.parametrize("gate", [{"watch": False}, {"max_fall": 0.99}, {"error": 1e-9}])
def test_settings_define_a_fall(
    gate: dict[str, object], store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop(**gate)
    learn_two_versions(store, loop, fill)
    fill(store, 12, score=-1, **answered_by(2))
    loop.run_once()
    assert head_of(store) == 3, "a step was taken"
    loop.close()
    fill(store, 1, score=-1, **answered_by(2))
    make_loop().run_once()
    assert head_of(store) == 1, "by default it is one"


@pytest.mark.parametrize(
    "other",
    [
        answered_by(2, kind=Kind.SIDE),
        answered_by(2, origin="text"),
        {"request": {"version": 2}, "judge": "untrusted"},
    ],
    ids=["side traffic", "imported", "untrusted judge"],
)
def test_only_scores_of_main_turns_by_trusted_judges_count(
    other: dict[str, object], store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    if "judge" in other:
        other = answered_by(2)
        with store.write() as conn:
            policy_marks._write(conn, "untrusted_judges", ["test"])
    fill(store, 30, score=-1, **other)
    loop.run_once()
    with store.read() as conn:
        assert policies.get(conn, 2).state is PolicyState.LIVE  # type: ignore[union-attr]


def test_one_key_rolls_back_nothing_for_others(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    fill(store, 40, score=-1, **answered_by(2, scope="mallory"))
    run_until_idle(loop)
    assert head_of(store) >= 2
    with store.read() as conn:
        assert policies.get(conn, 2).state is PolicyState.LIVE  # type: ignore[union-attr]


def test_a_version_that_displeases_several_people_is_rolled_back(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop()
    keys = ("ann", "bob", "eve")
    for version in (0, 1):
        for key in (*keys, *keys):
            fill(store, 2, **answered_by(version, scope=key))
        run_until_idle(loop)
    newest = head_of(store)
    for _ in range(7):
        for key in keys:
            fill(store, 1, score=-1, **answered_by(newest, scope=key))
    assert loop.run_once()
    assert head_of(store) < newest


def test_a_freeze_stops_steps_and_rollbacks(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    with store.write() as conn:
        policy_marks.freeze_training(conn, 1.0)
    fill(store, 12, score=-1, **answered_by(2))
    run_until_idle(loop)
    assert head_of(store) == 2
    assert loop.note == "training is frozen (`openclaw-rl policies unfreeze` continues it)"
    with store.write() as conn:
        policy_marks.unfreeze_training(conn)
    assert loop.run_once()
    assert head_of(store) == 1


def test_a_target_that_cannot_be_served_is_left_out(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    with store.read() as conn:
        target = policies.get(conn, 1)
    assert target is not None
    (Path(str(target.path)) / ADAPTER_WEIGHTS).write_bytes(b"other")
    fill(store, 12, score=-1, **answered_by(2))
    assert loop.run_once()
    assert head_of(store) == 0


def test_a_fall_without_a_target_is_reported_once(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    monkeypatch.setattr(version_files, "rollback_targets", lambda *_: [])
    fill(store, 12, score=-1, **answered_by(2))
    loop.run_once()
    fill(store, 1, score=-1, **answered_by(2))
    loop.run_once()
    assert caplog.text.count("No version of that time can be served: nothing is rolled back") == 1
    assert head_of(store) >= 2


def test_a_fall_that_could_not_be_taken_back_is_looked_at_after_a_restart(
    store: Store, make_loop: MakeLoop, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy has no newer scores then, but its files may have been restored."""
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    with monkeypatch.context() as broken:
        broken.setattr(version_files, "rollback_targets", lambda *_: [])
        fill(store, 12, score=-1, **answered_by(2))
        loop.run_once()
        loop.run_once()
    loop.close()
    assert make_loop().run_once()
    assert head_of(store) < 2


def test_a_watch_that_starts_again_looks_at_nothing_twice(
    store: Store, make_loop: MakeLoop, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_loop()
    learn_two_versions(store, loop, fill)
    loop.run_once()
    loop.close()
    looked_at: list[str] = []
    find_fall = SatisfactionWatch._find_fall

    def note_look(watch: SatisfactionWatch, name: str, head: int) -> object:
        looked_at.append(name)
        return find_fall(watch, name, head)

    monkeypatch.setattr(SatisfactionWatch, "_find_fall", note_look)
    again = make_loop()
    again.run_once()
    assert looked_at == []
    again.close()
    make_loop(error=0.01).run_once()
    assert looked_at == ["default"], "another setting decides otherwise"
