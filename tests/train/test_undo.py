"""What an undo plans and does, on the real store with a scripted trainer."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.train.conftest import put
from tests.train.state_trainer import StateTrainer

from openclaw_rl.cli.main import cli
from openclaw_rl.common.progress import Wait
from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import heartbeats, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies, policy_marks, retraining
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.supervisor import preflight
from openclaw_rl.train import worker
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import plan_promotion
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.undo import lesson_id, plan_undo, select_turns
from openclaw_rl.types import JudgedTurn, PolicyState, TurnState, Use

Judged = Callable[..., JudgedTurn]
TRAIN = {"batch.min_turns": 2, "batch.max_turns": 2, "batch.max_wait": 1e9}


class SlowTrainer(StateTrainer):
    """Takes a while, and says so; calls `during` in each step."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__({"seconds": seconds})
        self.seconds, self.during = seconds, lambda samples: None

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        time.sleep(self.seconds)
        self.during(samples)
        return super().step(samples, out)


class Home:
    """Each version was trained on two turns: the first of session s1, s2, ..., the second of `common`."""

    def __init__(self, store: Store, builder: SampleBuilder, judged: Judged, folder: Path) -> None:
        self.store, self.folder, self._judged, self._builder = store, folder, judged, builder
        self.trainer = SlowTrainer()
        self.loop = self.make_loop()
        self.learned: list[list[str]] = [[]]

    def reopen_loop(self, **settings: Any) -> None:
        self.loop.close()
        self.loop = self.make_loop(**settings)

    def make_loop(self, **settings: Any) -> TrainLoop:
        train = train_settings(TRAIN | settings)
        return TrainLoop(self.store, self.trainer, self._builder, train, self.folder / "policies")

    def add_turns(self, number: int, **about: Any) -> list[str]:
        names = (f"s{number}", "common")
        return put(self.store, [self._judged(request={"session": name}, **about) for name in names])

    def learn(self, versions: int, **about: Any) -> None:
        for _ in range(versions):
            self.learned.append(self.add_turns(len(self.learned), **about))
            assert self.loop.run_once(), self.loop.note

    def head(self) -> int:
        with self.store.read() as conn:
            return policies.head(conn).version

    def batches(self) -> list[list[str]]:
        """The batches of the head's lineage, oldest first."""
        with self.store.read() as conn:
            line = policies.lineage(conn, policies.head(conn).version)[-2::-1]
            return [[use.turn for use in policies.uses_of_version(conn, v)] for v in line]

    def left(self) -> list[tuple[str, ...]]:
        with self.store.read() as conn:
            return [batch.turns for batch in retraining.outstanding_batches(conn, DEFAULT_NAME)]

    def state(self, turn: str) -> tuple[TurnState, str | None]:
        with self.store.read() as conn:
            found = turns.get(conn, turn)
        assert found is not None
        return found.state, found.reason

    def undo(self, *words: str, answer: str | None = None) -> Result:
        return self.run("undo", "--no-wait", *words, answer=answer)

    def run(self, *words: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(cli, [*words, "--home", str(self.folder)], input=answer)


@pytest.fixture
def home(store: Store, builder: SampleBuilder, judged: Judged, tmp_path: Path) -> Iterator[Home]:
    made = Home(store, builder, judged, tmp_path)
    yield made
    made.loop.close()


def test_undo_describes_its_plan_and_asks(home: Home) -> None:
    home.learn(4)
    refused = home.undo("--turn", home.learned[2][0], answer="n\n")
    assert refused.exit_code == 1
    lines = refused.output.splitlines()
    assert lines[:2] == [
        "1 turn taken out; versions trained on them: 2",
        "3 versions rolled back: 2, 3, 4; version 1 answers meanwhile",
    ]
    last = r"3 batches of 5 turns trained on again: about \d s to \d s, at most 0.00103 MB on disk"
    assert re.fullmatch(last, lines[2])
    assert (home.head(), home.left()) == (4, [])
    done = home.undo("--turn", home.learned[2][0], "--reason", "a bad idea", answer="y\n")
    assert done.exit_code == 0, done.output
    assert (home.head(), home.left()) == (1, [(home.learned[2][1],), *map(tuple, home.learned[3:])])
    assert home.state(home.learned[2][0]) == (TurnState.DROPPED, "a bad idea")
    with home.store.read() as conn:
        undone = policies.get_many(conn, (2, 3, 4))
    assert [(p.state, p.reason) for p in undone] == [(PolicyState.ROLLED_BACK, "a bad idea")] * 3


AT_TINKER = (
    "train.trainer=tinker",
    "engine.backend=tinker",
    "gate.kind=numbers",
    "train.method=binary",
)


class AbsentTrainer:
    """A loop whose service does not answer; the third attempt is interrupted."""

    note = "the Tinker service does not answer"
    waits = frozenset({Wait.TRAINER})

    def __init__(self) -> None:
        self.attempts = 0

    def run_once(self) -> bool:
        self.attempts += 1
        if self.attempts == 3:
            raise KeyboardInterrupt
        return False

    def forget_attempts(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_undo_at_a_service_needs_consent(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.learn(2)
    home.undo("--turn", home.learned[1][0], "--yes")
    words = ("undo", "--now", *(word for setting in AT_TINKER for word in ("--set", setting)))
    assert "Tinker needs " in str(home.run(*words, "--yes").exception), "its SDK, or a key"
    opened: list[AbsentTrainer] = []

    def open_loop(*_: object) -> AbsentTrainer:
        opened.append(AbsentTrainer())
        return opened[-1]

    monkeypatch.setattr(preflight, "check_before_start", lambda config, workers: None)
    monkeypatch.setattr(worker, "open_train_loop", open_loop)
    refused = home.run(*words)
    assert "nothing is sent to Tinker before you agree" in str(refused.exception)
    assert opened == []
    said = home.run(*words, "--yes").output
    assert "to train: the tokens of the turns" in said
    assert said.count(AbsentTrainer.note) == 1, "why it waits, once"
    assert opened[0].attempts == 3


def test_an_undo_trains_remaining_turns_before_new_ones(home: Home) -> None:
    home.learn(3)
    fresh = home.add_turns(9)
    assert home.undo("--session", "s2", "--yes").exit_code == 0
    for _ in range(3):
        assert home.loop.run_once()
    assert not home.loop.run_once()
    assert home.batches() == [home.learned[1], home.learned[2][1:], home.learned[3], fresh]
    with home.store.read() as conn:
        line = policies.get_many(conn, policies.lineage(conn, policies.head(conn).version))
    assert [p.metrics.get("retrained") for p in line] == [None, None, 1.0, 1.0, None]


def test_an_undo_of_untrained_turns_only_removes_them_from_the_queue(home: Home) -> None:
    home.learn(1)
    waiting = home.add_turns(7)
    done = home.undo("--session", "s7", "--yes")
    assert "1 turn taken out of the training queue; no version was trained on them" in done.output
    assert (home.head(), home.state(waiting[0])[0]) == (1, TurnState.DROPPED)


def test_an_undo_selects_turns_by_lesson_and_by_time(home: Home) -> None:
    home.learn(1, hints=("Write shorter replies.",), at=time.time() - 7200)
    home.learn(1, hints=("Use metric units.",))
    for words in ("", ".", " e ", "re"):
        refused = home.undo("--lesson", words, "--yes").exception
        assert (
            f"--lesson {words!r}: expected the id of a hint, or a part of its text with at least 3"
            in str(refused)
        )
    assert home.head() == 2, "nothing was undone"
    unknown = home.undo("--lesson", "nothing like this", "--yes")
    assert isinstance(unknown.exception, OpenClawError)
    assert f"{lesson_id('Use metric units.')}  Use metric units." in str(unknown.exception)
    with home.store.read() as conn:
        assert select_turns(conn, since=time.time() - 3600) == home.learned[2]
        assert select_turns(conn, lesson=lesson_id("Use metric units.")) == home.learned[2]
        assert select_turns(conn, lesson="METRIC") == home.learned[2]
        assert select_turns(conn, names=["s2"], ids=[home.learned[1][1]]) == [
            home.learned[1][1],
            home.learned[2][0],
        ]
    done = home.undo("--lesson", "SHORTER", "--yes").output
    assert done.splitlines()[:2] == [
        "hints and lessons that match:",
        f"  {lesson_id('Write shorter replies.')}  Write shorter replies. (2 turns)",
    ]
    assert "2 versions rolled back" in done


def test_an_undo_by_text_lists_its_matches(home: Home) -> None:
    home.learn(1, hints=("Write shorter replies.",))
    home.learn(1, hints=("Write longer replies.",))
    refused = home.undo("--lesson", "replies", answer="n\n")
    lines = refused.output.splitlines()
    asked = next(number for number, line in enumerate(lines) if "Continue?" in line)
    for hint in ("Write shorter replies.", "Write longer replies."):
        assert f"  {lesson_id(hint)}  {hint} (2 turns)" in lines[:asked]
    assert home.head() == 2


def test_a_long_hint_is_cut_where_hints_are_listed(home: Home) -> None:
    home.learn(1, hints=("Mind the tone. " * 40,))
    unknown = str(home.undo("--lesson", "nothing like this", "--yes").exception)
    refused = home.undo("--lesson", "the tone", answer="n\n").output
    for shown in (unknown, refused):
        assert "Mind the tone. Mind" in shown
        assert max(map(len, shown.splitlines())) < 250


def test_an_undo_by_lesson_id_deletes_the_lesson(home: Home) -> None:
    home.learn(2)
    lesson = Lesson(id="0badcafe", text="Keep answers short.", made_at=1.0, reinforced_at=1.0)
    with home.store.write() as conn:
        lessons.add_lesson(conn, lesson)
        for turn in home.learned[2]:
            lessons.reinforce(conn, lesson.id, turn, at=1.0)
    assert home.undo("--lesson", "0badcafe", "--yes").exit_code == 0
    assert home.head() == 1
    assert home.state(home.learned[2][0])[0] is TurnState.DROPPED
    with home.store.read() as conn:
        assert lessons.list_lessons(conn) == []


def test_an_undo_by_text_finds_evidence_in_other_words(home: Home) -> None:
    home.learn(2)
    lesson = Lesson(id="0badcafe", text="Be brief.", made_at=1.0, reinforced_at=1.0)
    with home.store.write() as conn:
        lessons.add_lesson(conn, lesson)
        for turn in home.learned[2]:
            lessons.reinforce(conn, lesson.id, turn, at=1.0)
    with home.store.read() as conn:
        assert select_turns(conn, lesson="brief") == home.learned[2]


def test_a_turn_with_a_lesson_in_its_prompt_is_used_once(home: Home, renderer: Renderer) -> None:
    hinted = [{"role": "user", "content": "Where is the Louvre?\n\n[Hint: Keep answers short.]"}]
    request = {
        "lessons": {"aa": "Keep answers short."},
        "prompt_ids": renderer.render(hinted).prompt_ids,
    }
    turns_ = put(
        home.store, [home._judged(score=-1, hints=("Be kind.",), request=request) for _ in range(2)]
    )
    assert home.loop.run_once(), home.loop.note
    assert [len(batch) for batch in home.trainer.batches] == [4], "two samples of each turn"
    assert home.batches() == [turns_]


def test_a_second_undo_joins_the_first(home: Home) -> None:
    home.learn(5)
    assert home.undo("--session", "s2", "--yes").exit_code == 0
    for _ in range(2):
        assert home.loop.run_once()
    assert home.undo("--session", "s4", "--yes").exit_code == 0, "of a batch that is still left"
    assert home.head() == 7
    assert home.undo("--session", "s3", "--yes").exit_code == 0, (
        "of a batch that is trained on already"
    )
    assert home.head() == 6
    while home.left():
        assert home.loop.run_once()
    learned = home.learned
    assert home.batches() == [
        learned[1],
        learned[2][1:],
        learned[3][1:],
        learned[4][1:],
        learned[5],
    ]


def test_a_rollback_cancels_an_undo(home: Home) -> None:
    home.learn(4)
    assert home.undo("--session", "s2", "--yes").exit_code == 0
    assert home.loop.run_once()
    done = home.run("rollback", "0", "--yes")
    assert "the undo in progress is cancelled: 2 batches are not trained on again" in done.output
    assert (home.head(), home.left()) == (0, [])
    assert not home.loop.run_once(), "what was learned later than version 0 stays taken back"


def test_a_promotion_does_not_restore_undone_turns(home: Home) -> None:
    home.learn(3)
    head = home.head()
    assert home.undo("--turn", home.learned[2][0], "--yes", "--no-wait").exit_code == 0
    with home.store.read() as conn, pytest.raises(OpenClawError, match="an undo is in progress"):
        plan_promotion(conn, head)
    with home.store.write() as conn:
        retraining.replace_batches(conn, DEFAULT_NAME, ())
    with (
        home.store.read() as conn,
        pytest.raises(OpenClawError, match="was trained on 1 turns that were undone"),
    ):
        plan_promotion(conn, head)


def test_after_a_rollback_and_a_promotion_an_undo_trains_the_rest_again(home: Home) -> None:
    home.learn(3)
    first, head = home.learned[2][0], home.head()
    assert home.run("rollback", "0", "--yes").exit_code == 0
    assert home.state(first)[0] is TurnState.DROPPED
    assert home.run("policies", "promote", str(head), "--yes").exit_code == 0
    assert home.state(first)[0] is TurnState.CLOSED, "it is judged again, and its lessons come back"
    assert home.undo("--turn", first, "--yes").exit_code == 0
    while home.left():
        assert home.loop.run_once()
    learned = home.learned
    assert home.batches() == [learned[1], learned[2][1:], learned[3]]


def test_an_undo_is_refused_while_training_is_frozen(home: Home) -> None:
    home.learn(2)
    with home.store.write() as conn:
        policy_marks.freeze_training(conn, 1.0)
    assert "training is frozen" in str(home.undo("--turn", home.learned[1][0], "--yes").exception)
    assert home.head() == 2


def test_an_undo_without_training_works_while_frozen(home: Home) -> None:
    home.learn(2)
    waiting = home.add_turns(9)[0]
    with home.store.write() as conn:
        policy_marks.freeze_training(conn, 1.0)
    assert home.undo("--yes", "--turn", waiting).exit_code == 0
    assert (home.state(waiting)[0], home.head()) == (TurnState.DROPPED, 2)
    first, second = home.learned[2]
    assert "training is frozen" in str(home.undo("--yes", "--turn", first).exception), (
        "the other one trains again"
    )
    assert home.undo("--yes", "--turn", first, "--turn", second).exit_code == 0
    assert (home.state(second)[0], home.head(), home.left()) == (TurnState.DROPPED, 1, [])


def test_a_step_in_progress_publishes_no_turn_that_was_taken_back(home: Home) -> None:
    home.learn(1)
    claimed = home.add_turns(2)

    def undo_first(samples: Sequence[Sample]) -> None:
        home.trainer.during = lambda _: None
        assert home.undo("--turn", claimed[0], "--yes").exit_code == 0

    home.trainer.during = undo_first
    assert home.loop.run_once()
    assert home.head() == 1
    home.reopen_loop(**{"batch.min_turns": 1})
    assert home.loop.run_once()
    assert home.batches()[-1] == claimed[1:]


def test_a_failed_batch_does_not_stop_the_undo(home: Home) -> None:
    home.learn(3)
    assert home.undo("--session", "s1", "--yes").exit_code == 0

    def fail_once(samples: Sequence[Sample]) -> None:
        if len(samples) == 2:
            home.trainer.during = lambda _: None
            raise ModelError("broken")

    home.trainer.during = fail_once
    while home.left():
        assert home.loop.run_once()
    assert home.batches() == [home.learned[1][1:], home.learned[3]]
    home.reopen_loop(**{"batch.min_turns": 1})
    assert home.loop.run_once(), "its turns are in the queue again, in halves"
    assert home.batches()[-1] == home.learned[2][:1]


def test_turns_that_became_untrainable_are_left_out(home: Home) -> None:
    home.learn(3)
    with home.store.write() as conn:
        turns.mark_untrainable(
            conn, {home.learned[2][0]: Reason(ReasonCode.NOT_STORED, "its client forbids it")}
        )
        turns.mark_untrainable(
            conn, {home.learned[3][0]: Reason(ReasonCode.NOT_STORED, "its client forbids it")}
        )
        turns.mark_untrainable(
            conn, {home.learned[3][1]: Reason(ReasonCode.NOT_STORED, "its client forbids it")}
        )
    assert home.undo("--session", "s1", "--yes").exit_code == 0
    while home.left():
        assert home.loop.run_once()
    assert home.batches() == [home.learned[1][1:], home.learned[2][1:]]


def test_status_and_doctor_show_an_undo(home: Home) -> None:
    home.learn(2)
    assert home.undo("--session", "s1", "--yes").exit_code == 0
    report = "an undo is in progress: 2 batches left to train on again; version 0 answers"
    assert report in home.run("status", "--json").output
    assert "an undo waits" in home.run("doctor", "--troubles").output
    heartbeats.write_heartbeat(home.store, "train")
    assert "an undo waits" not in home.run("doctor", "--troubles").output
    while home.left():
        assert home.loop.run_once()
    assert "an undo" not in home.run("status", "--json").output


def test_the_estimated_time_is_that_of_the_recorded_batches(home: Home) -> None:
    """The recorded times are those of whole batches."""
    home.trainer.seconds = 0.05
    home.learn(1)
    home.learned += [home.add_turns(number) for number in range(2, 13)]
    home.reopen_loop()
    looped = []
    for _ in range(11):
        started = time.monotonic()
        assert home.loop.run_once()
        looped.append(time.monotonic() - started)
    with home.store.read() as conn:
        recorded = [policy.metrics["seconds/batch"] for policy in policies.list_all(conn)[1:]]
        plan = plan_undo(conn, select_turns(conn, names=["s1"]))
    assert (plan.safe, len(plan.work.sizes), len(recorded)) == (0, 12, 12)
    assert min(recorded) >= 0.05
    shares = sorted(batch / whole for batch, whole in zip(recorded[1:], looped, strict=True))
    assert 0.8 <= shares[5] <= 1.05, (
        "nothing that each batch needs is left out, whatever stops a single one"
    )
    whole, usual = sum(recorded), sum(recorded) / 12
    assert plan.seconds[1] == pytest.approx(1.5 * whole + 2 + usual)
    assert plan.seconds[0] == pytest.approx((whole - recorded[0] / 2) / 1.5), (
        "the first batch has lost one of two turns"
    )


def test_an_undo_of_the_first_of_fifty_versions(home: Home) -> None:
    home.learn(1)
    home.learned += [home.add_turns(version) for version in range(2, 51)]
    with home.store.write() as conn:  # the other 49, without files, which nobody reads
        first, lease = (
            policies.get_many(conn, [1])[0],
            leases.acquire(conn, "test", "test", 60.0, 0.0),
        )
        assert lease is not None
        for version in range(2, 51):
            uses = [Use(policy=version, turn=turn, number=1) for turn in home.learned[version]]
            policy = replace(first, version=version, parent=version - 1, path=None, files={})
            policies.publish(conn, lease, policy, uses, 0.0)
    assert home.undo("--session", "s1", "--yes").exit_code == 0
    assert (home.head(), len(home.left())) == (0, 50)
    while home.left():
        assert home.loop.run_once()
    assert home.batches() == [home.learned[1][1:], *home.learned[2:]]


CHILD = """
import os, signal, sys
from pathlib import Path
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, train_settings
from openclaw_rl.store.db import Store
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.supervisor import preflight
from openclaw_rl.train import worker
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import plan_promotion
from openclaw_rl.train.sample_builder import SampleBuilder

class Trainer(ScriptedTrainer):
    def step(self, samples, out):
        result = super().step(samples, out)
        if len(self.batches) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

home, method = Path(sys.argv[1]), make_method(train_settings({"method": "combine"}))
renderer = Renderer(ModelFiles.from_path(STARTER))
builder = SampleBuilder(renderer=renderer, transient=EphemeralMatcher([]), signal=method, max_staleness=64)
train = train_settings({"safety.lease_ttl": 0.5})
loop = TrainLoop(Store.open(home / "store.db"), Trainer(), builder, train, home / "policies")
while loop.run_once():
    pass
"""


def test_a_killed_trainer_resumes_the_undo(home: Home) -> None:
    home.learn(6)
    home.loop.close()
    assert home.undo("--session", "s1", "--yes").exit_code == 0
    dead = subprocess.run([sys.executable, "-c", CHILD, str(home.folder)], timeout=240, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert home.head() == 8, "two of six batches were done"
    assert len(home.left()) == 4
    home.reopen_loop()
    give_up = time.monotonic() + 240
    while home.left():
        assert home.loop.run_once() or time.monotonic() < give_up, home.loop.note
    assert home.batches() == [home.learned[1][1:], *home.learned[2:]]
    assert len({turn for batch in home.batches() for turn in batch}) == 11, "each turn once"
