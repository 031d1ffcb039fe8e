"""What was learned is taken back, stays taken back, and what cannot answer is not gone back to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openclaw_rl.cli.main import cli
from openclaw_rl.common.policy_digest import ADAPTER_WEIGHTS
from openclaw_rl.errors import OpenClawError
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import reactions, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_promotion, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import Feedback, Policy, PolicyState, TurnState

Fill = Callable[..., list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def loop(store: Store, builder: SampleBuilder, home: Path) -> TrainLoop:
    train = train_settings({"batch.min_turns": 4, "batch.max_turns": 4, "batch.max_wait": 1e9})
    return TrainLoop(store, ScriptedTrainer(), builder, train, home / "policies")


@pytest.fixture
def learned(store: Store, loop: TrainLoop, fill: Fill) -> list[list[str]]:
    """The turns behind versions 1, 2 and 3."""
    made = []
    for _ in range(3):
        made.append(fill(store, 4))
        assert loop.run_once()
    return made


def head_of(store: Store) -> Policy:
    with store.read() as conn:
        return policies.head(conn)


def run(home: Path, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["rollback", "--home", str(home), *words], input=answer)


def test_turns_that_were_taken_back_are_not_trained_on_again(
    store: Store, loop: TrainLoop, learned: list[list[str]], fill: Fill, home: Path
) -> None:
    done = run(home, "1", "--yes", "--reason", "it had become rude")
    assert done.exit_code == 0, done.output
    assert "back to version 1; rolled back: 2, 3; 8 turns are not trained on again" in done.output
    assert head_of(store).version == 1
    with store.read() as conn:
        states = {p.version: (p.state, p.reason) for p in policies.list_all(conn)}
        assert states[3] == states[2] == (PolicyState.ROLLED_BACK, "it had become rude")
        for turn in learned[1] + learned[2]:
            found = turns.get(conn, turn)
            assert found is not None
            assert (found.state, found.reason) == (
                TurnState.DROPPED,
                "the version trained on it was rolled back (to version 1)",
            )
        kept = turns.get(conn, learned[0][0])
        assert kept is not None
        assert kept.state is TurnState.JUDGED
    assert not loop.run_once(), "nothing is left to train on"
    fresh = fill(store, 4)
    assert loop.run_once(), "new words train"
    assert head_of(store).parent == 1
    with store.read() as conn:
        assert sorted(
            use.turn for use in policies.uses_of_version(conn, head_of(store).version)
        ) == sorted(fresh)


def test_a_turn_that_was_dropped_after_its_training_is_taken_back_too(
    store: Store, learned: list[list[str]], home: Path
) -> None:
    """A superseded turn could be reopened by late feedback, and would train again."""
    turn = learned[2][0]
    with store.write() as conn:
        assert turn_states.drop(
            conn, turn, ReasonCode.SUPERSEDED, "another reply took its place", at=1.0
        )
    done = run(home, "2", "--yes")
    assert "4 turns are not trained on again" in done.output
    assert "4 turns removed from training" in done.output
    with store.write() as conn:
        records.add_feedback(
            conn, [Feedback(id="late", scope="key", target=turn, score=1, given_at=2.0)]
        )
        assert not reactions.record_pending_feedback(conn, turn, at=2.0)


def test_rolled_back_turns_train_again_on_request(
    store: Store, loop: TrainLoop, learned: list[list[str]], home: Path
) -> None:
    done = run(home, "--learn-again", "--yes")
    assert "back to version 2; rolled back: 3; 4 turns may be trained on again" in done.output
    assert loop.run_once()
    with store.read() as conn:
        assert sorted(use.turn for use in policies.uses_of_version(conn, 4)) == sorted(learned[2])


def test_a_rollback_asks_for_confirmation(
    store: Store, learned: list[list[str]], home: Path
) -> None:
    assert run(home, "0", answer="n\n").exit_code == 1
    assert head_of(store).version == 3
    assert run(home, "0", answer="y\n").exit_code == 0
    assert head_of(store).version == 0
    nothing = run(home, "--yes")
    assert isinstance(nothing.exception, OpenClawError)
    assert "there is nothing to roll back" in str(nothing.exception)


def test_only_an_ancestor_can_be_the_target(learned: list[list[str]], home: Path) -> None:
    assert str(run(home, "3", "--yes").exception) == "version 3 is the head already"
    assert (
        str(run(home, "9", "--yes").exception)
        == "expected an ancestor of version 3, one of 2, 1, 0; got 9"
    )
    assert run(home, "2", "--yes").exit_code == 0
    assert "`openclaw-rl policies promote 3` makes it the head" in str(
        run(home, "3", "--yes").exception
    )


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_an_unusable_version_is_no_rollback_target(
    how: str, store: Store, learned: list[list[str]], home: Path
) -> None:
    with store.read() as conn:
        target = policies.get(conn, 2)
    assert target is not None
    weights = Path(str(target.path)) / ADAPTER_WEIGHTS
    weights.write_bytes(b"other") if how == "changed" else weights.unlink()
    refused = run(home, "2", "--yes")
    assert "version 2 cannot be served" in str(refused.exception)
    assert head_of(store).version == 3


def test_a_rollback_is_done_as_it_was_confirmed(
    store: Store, loop: TrainLoop, learned: list[list[str]], fill: Fill, home: Path
) -> None:
    """It learned while the person was asked."""
    with store.read() as conn:
        agreed = plan_rollback(conn, 1)
    fill(store, 4)
    assert loop.run_once()
    with (
        store.write() as conn,
        pytest.raises(OpenClawError, match="version 3 is no longer the head"),
    ):
        apply_rollback(conn, agreed, learn_again=False, reason="too late")
    assert head_of(store).version == 4


def test_a_promotion_decides_by_the_code_of_what_was_taken_back(
    store: Store, learned: list[list[str]], home: Path
) -> None:
    """A rolled back turn comes back with its version, whatever its reason says; an undone one does not."""
    assert run(home, "1", "--yes").exit_code == 0
    with store.write() as conn:
        turn_states.take_back(
            conn, learned[1], "in other words", at=9.0, code=ReasonCode.ROLLED_BACK
        )
    with store.read() as conn:
        assert plan_promotion(conn, 3).to == 3
    with store.write() as conn:
        turn_states.take_back(
            conn, learned[2][:1], "the version trained on it was rolled back", at=9.0
        )
    with store.read() as conn, pytest.raises(OpenClawError, match="1 turns that were undone since"):
        plan_promotion(conn, 3)
