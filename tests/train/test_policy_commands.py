"""`openclaw-rl policies` on a real store with versions of a scripted trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.store.world import request

from openclaw_rl.cli.main import cli
from openclaw_rl.common.policy_digest import ADAPTER_WEIGHTS
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, probe_answers, training_queue
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.reactions import set_position
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import Kind, Origin, PolicyState, TurnState

Fill = Callable[..., list[str]]


@pytest.fixture
def loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[TrainLoop]:
    train = train_settings(
        {
            "batch.min_turns": 4,
            "batch.max_turns": 4,
            "batch.max_wait": 1e9,
            "checkpoint.keep_versions": 2,
        }
    )
    opened = TrainLoop(store, ScriptedTrainer(), builder, train, tmp_path / "policies")
    yield opened
    opened.close()


def learn(store: Store, loop: TrainLoop, fill: Fill, versions: int) -> list[list[str]]:
    """Publish versions, and return the turns that each was trained on."""
    taught = []
    for _ in range(versions):
        with store.read() as conn:
            head = policies.head(conn).version
        taught.append(fill(store, 4, request={"version": head}))
        assert loop.run_once()
    return taught


def run(home: Path, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        cli,
        ["policies", words[0], "--home", str(home), *words[1:]],
        input=answer,
        env={"COLUMNS": "120"},
    )


def listed(home: Path) -> dict[int, dict[str, Any]]:
    return {
        row["version"]: row for row in json.loads(run(home, "list", "--json").output)["versions"]
    }


def states(store: Store) -> tuple[int, dict[int, PolicyState]]:
    with store.read() as conn:
        return policies.head(conn).version, {p.version: p.state for p in policies.list_all(conn)}


def roll_back(store: Store, to: int) -> None:
    with store.write() as conn:
        apply_rollback(conn, plan_rollback(conn, to), learn_again=False, reason="by a test")


def test_policies_list_shows_satisfaction(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 2)
    fill(store, 3, score=-1, request={"version": 1})
    rows = listed(tmp_path)
    assert rows[1]["satisfaction"]["share"] == pytest.approx(4 / 7)
    assert rows[1]["satisfaction"]["of"] == 7
    assert 0 < rows[1]["satisfaction"]["low"] < 4 / 7 < rows[1]["satisfaction"]["high"] < 1
    assert [row["head"] for row in rows.values()] == [False, False, True]
    assert rows[2]["satisfaction"] is None
    text = run(tmp_path, "list").output
    assert "0.57 (0.25 to 0.84) of 7" in text
    assert "head" in text
    shown = run(tmp_path, "show", "1")
    assert "trained on 4 turns" in shown.output


def test_served_are_the_replies_that_people_got(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    """Side traffic, which an evaluation declares or the collector recognises, and imported replies are left out."""
    learn(store, loop, fill, 1)
    fill(store, 3, request={"version": 1})
    with store.write() as conn:
        declared = [request(f"side-{n}", version=1, kind=Kind.SIDE) for n in range(4)]
        imported = [request(f"imported-{n}", version=1, origin=Origin.TEXT) for n in range(2)]
        exchanges.admit(conn, [*declared, *imported, request("title", version=1)])
    assert listed(tmp_path)[1]["served"] == 4, "before the collector has read the title's request"
    with store.write() as conn:
        set_position(
            conn,
            "title",
            session="s",
            parent=None,
            kind=Kind.SIDE,
            relation="fresh",
            relation_of=None,
            unlinked=None,
        )
    assert listed(tmp_path)[1]["served"] == 3


def test_diff_shows_which_probe_answers_changed(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 2)
    sums = {"question": "1 plus 1?", "verdict": 0.0, "probe": "sum"}
    same = {
        "question": "Who?",
        "verdict": 0.0,
        "probe": "who",
        "head_answer": "me",
        "candidate_answer": "me",
    }
    with store.write() as conn:
        for version, before, after in ((1, "2", "two"), (2, "two", "[red]3\x1b[2J")):
            answer = ProbeAnswer(
                **sums,
                version=version,
                head=version - 1,
                head_answer=before,
                candidate_answer=after,
            )
            probe_answers.record_answers(
                conn, [answer, ProbeAnswer(**same, version=version, head=version - 1)]
            )
    for first, second, answers in (
        (1, 2, ["two", "[red]3\x1b[2J"]),
        (0, 1, ["2", "two"]),
        (2, 0, [..., "2"]),
    ):
        data = json.loads(run(tmp_path, "diff", str(first), str(second), "--json").output)
        assert data["probes"] == 2
        [changed] = data["changed"]
        assert changed["probe"] == "sum"
        assert changed["answers"][1] == answers[1]
    text = run(tmp_path, "diff", "1", "2").output
    assert "answers that differ: 1" in text
    assert "[red]3" in text
    assert "\x1b" not in text
    assert "no policy version 9" in str(run(tmp_path, "diff", "1", "9").exception)


def test_diff_in_the_other_direction_compares_the_same_answers(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    """The gate asked prompts of a person that only this pair has answered."""
    learn(store, loop, fill, 2)
    asked = {"question": "And?", "verdict": 0.0, "head_answer": "yes", "candidate_answer": "no"}
    with store.write() as conn:
        for version in (1, 2):
            answer = ProbeAnswer(
                **asked, probe=f"turn {version}", version=version, head=version - 1
            )
            probe_answers.record_answers(conn, [answer])
    there, back = (
        json.loads(run(tmp_path, "diff", *pair, "--json").output)
        for pair in (("1", "2"), ("2", "1"))
    )
    assert there["changed"] == [{"probe": "turn 2", "question": "And?", "answers": ["yes", "no"]}]
    assert back["changed"] == [{"probe": "turn 2", "question": "And?", "answers": ["no", "yes"]}]
    assert there["probes"] == back["probes"] == 1


def test_a_rolled_back_version_is_promoted(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 2)
    roll_back(store, 0)
    taught = learn(store, loop, fill, 1)
    done = run(tmp_path, "promote", "2", "--yes", "--reason", "it was the better one")
    assert done.exit_code == 0, done.output
    assert (
        "version 2 becomes the head; rolled back: 3; 4 turns are not trained on again"
        in done.output
    )
    live, back = PolicyState.LIVE, PolicyState.ROLLED_BACK
    assert states(store) == (2, {0: live, 1: live, 2: live, 3: back})
    with store.read() as conn:
        gone = turns.get(conn, taught[0][0])
        queue = training_queue.count_trainable(conn, max_uses=1, need_score=True, need_hint=True)
        left = policies.get(conn, 3)
    assert left is not None
    assert left.reason == "it was the better one"
    assert gone is not None
    assert gone.state is TurnState.DROPPED
    assert queue == 0
    learn(store, loop, fill, 1)
    with store.read() as conn:
        assert policies.lineage(conn, 4) == [4, 2, 1, 0], "training continues from it"


def test_a_step_in_progress_is_not_published_over_a_promotion(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 2)
    roll_back(store, 1)
    fill(store, 4, request={"version": 1})
    trainer = loop._trainer._trainer
    assert isinstance(trainer, ScriptedTrainer)
    trainer.outcome = lambda samples: run(tmp_path, "promote", "2", "--yes") and {}
    assert loop.run_once()
    trainer.outcome = lambda samples: {}
    assert states(store)[0] == 2
    assert loop.run_once(), "the same turns train on the new head"
    with store.read() as conn:
        head = policies.head(conn)
        assert head.parent == 2
        assert len(policies.uses_of_version(conn, head.version)) == 4


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("9", "no policy version 9"),
        ("3", "version 3 is the head already"),
        ("0", "version 0 is an ancestor of the head. `openclaw-rl rollback 0` goes back to it"),
        ("2", "version 2 cannot be served: .*has sha256"),
    ],
)
def test_versions_that_cannot_be_promoted_are_refused(
    version: str, words: str, store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 2)
    roll_back(store, 1)
    learn(store, loop, fill, 1)
    with store.read() as conn:
        damaged = policies.get(conn, 2)
    assert damaged is not None
    (Path(str(damaged.path)) / ADAPTER_WEIGHTS).write_bytes(b"other")
    with pytest.raises(Exception, match=words):
        raise run(tmp_path, "promote", version, "--yes").exception or AssertionError
    assert states(store)[0] == 3


def test_files_of_a_pinned_version_are_kept(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 1)
    assert "version 1 is pinned" in run(tmp_path, "pin", "1").output
    learn(store, loop, fill, 4)
    rows = listed(tmp_path)
    assert [v for v, row in rows.items() if not row["files"]] == [2]
    assert [v for v, row in rows.items() if row["pinned"]] == [1]
    assert "no longer pinned" in run(tmp_path, "unpin", "1").output
    learn(store, loop, fill, 1)
    assert not listed(tmp_path)[1]["files"]
    for command, words in (("pin", "version 1 has no files"), ("unpin", "version 1 is not pinned")):
        assert words in str(run(tmp_path, command, "1").exception)
        assert str(run(tmp_path, command, "99").exception) == (
            "no policy version 99; there are 0 to 6. `openclaw-rl policies list` shows the newest"
        )


def test_a_freeze_holds_training_until_it_ends(
    store: Store, loop: TrainLoop, fill: Fill, tmp_path: Path
) -> None:
    learn(store, loop, fill, 1)
    assert "frozen at version 1" in run(tmp_path, "freeze").output
    fill(store, 4, request={"version": 1})
    assert not loop.run_once()
    assert loop.note.startswith("training is frozen")
    assert "training is frozen since" in run(tmp_path, "list").output
    assert "training continues" in run(tmp_path, "unfreeze").output
    assert loop.run_once()
    assert states(store)[0] == 2
    assert "not frozen" in str(run(tmp_path, "unfreeze").exception)
