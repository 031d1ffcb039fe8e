"""`policy.per`: each policy is trained from its own turns alone. With the real trainer on a small model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.learner.conftest import save_tiny
from tests.train.conftest import IDENTITY, put

from openclaw_rl.cli.main import cli
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.progress import Wait
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, from_flat, train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.status.health import training_queue_length
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, policies, policy_names, retraining
from openclaw_rl.store.lineage.live_scores import newest_scores
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, PolicyOwner, owner_filter
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.undo import apply_undo, check_safe_files, select_turns
from openclaw_rl.types import JudgedTurn, PolicyState

pytestmark = pytest.mark.system

LOOSE = {  # the log-probabilities of the turns are invented
    "method": "combine",
    "safety.max_turn_log_ratio": 99,
    "loss.token_ratio_min": 1e-6,
    "loss.token_ratio_max": 1e6,
    "batch.min_turns": 4,
    "batch.max_turns": 4,
    "batch.max_wait": 1e9,
    "batch.max_uses": 2,
    "batch.replay_ratio": 0.5,
}
ANN, BOB = "agent:key:ann", "agent:key:bob"


class Home:
    """A home whose agents have policies of their own."""

    def __init__(
        self,
        folder: Path,
        model: str,
        *,
        per: PolicyOwner = "agent",
        gate: bool = False,
        practice: Callable[[Store, SampleBuilder], PracticeSession] | None = None,
        **settings: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        train = train_settings(LOOSE | settings)
        self.folder = folder
        self.store = Store.open(folder / "store.db")
        with self.store.write() as conn:
            policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
            policy_names.start_policies(conn, per)
        method = make_method(train)
        builder = SampleBuilder(
            renderer=Renderer(ModelFiles.from_path(STARTER)),
            transient=EphemeralMatcher([]),
            signal=method,
            max_staleness=64,
        )
        trainer, examiner = (
            LocalTrainer(model, method, train),
            CandidateGate(self.store, GateConfig(), per=per),
        )
        root, used = folder / "policies", examiner if gate else None
        session = practice(self.store, builder) if practice is not None else None
        self.loop = TrainLoop(
            self.store,
            trainer,
            builder,
            train,
            root,
            LoopParts(per=per, gate=used, practice=session),
        )

    def learn(self, turns: Iterable[JudgedTurn]) -> None:
        put(self.store, list(turns))
        while self.loop.run_once():
            pass

    def undo(self, *words: str) -> str:
        """What the command says, which gets no settings but the home."""
        done = CliRunner().invoke(
            cli, ["undo", *words, "--yes", "--no-wait", "--home", str(self.folder)]
        )
        assert done.exit_code == 0, done.exception
        return done.output

    def head(self, name: str) -> int:
        with self.store.read() as conn:
            return policies.head(conn, name).version

    def lineage(self, name: str) -> list[int]:
        with self.store.read() as conn:
            return policies.lineage(conn, policies.head(conn, name).version)

    def used(self, name: str) -> set[str]:
        with self.store.read() as conn:
            line = policies.lineage(conn, policies.head(conn, name).version)
            return {use.turn for version in line for use in policies.uses_of_version(conn, version)}

    def files(self, name: str) -> dict[str, str | None]:
        with self.store.read() as conn:
            return dict(policies.head(conn, name).files)


Make = Callable[..., JudgedTurn]


def turns_of(judged: Make, agent: str, count: int, score: int = 1) -> list[JudgedTurn]:
    return [
        judged(
            score=score if n % 3 else -score,
            hints=(f"Answer in {n % 5 + 1} words.",) if n % 2 else (),
            request={"id": f"{agent or 'nobody'}-{n}", "agent": agent, "session": f"of {agent}"},
            words=f"Number {n}.",
            question=f"What is {n}?",
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    vocabulary = json.loads((ModelFiles.from_path(STARTER).folder / "config.json").read_text())[
        "vocab_size"
    ]
    return save_tiny(tmp_path_factory.mktemp("model"), vocabulary=vocabulary)


def test_each_policy_trains_on_its_own_turns(tmp_path: Path, judged: Make, model: str) -> None:
    """Weights, optimizer and trainer state are the same to the bit with and without the other agents."""
    ann, bob, nobody = (
        turns_of(judged, "ann", 12),
        turns_of(judged, "bob", 12, score=-1),
        turns_of(judged, "", 8),
    )
    both, alone = Home(tmp_path / "both", model), Home(tmp_path / "alone", model)
    both.learn(
        turn for pair in zip(ann, bob, [*nobody, *nobody], strict=False) for turn in pair[:2]
    )
    both.learn(nobody)
    alone.learn(ann)
    assert both.used(ANN) == {item.turn.id for item in ann}
    assert both.used(BOB) == {item.turn.id for item in bob}
    assert both.used(DEFAULT_NAME) == {item.turn.id for item in nobody}
    assert both.files(ANN) == alone.files(ANN)
    assert both.files(ANN) != both.files(BOB)
    assert len(both.lineage(ANN)) == len(both.lineage(BOB)) == 4
    assert set(both.lineage(ANN)) & set(both.lineage(BOB)) == {0}, "the shared parent"


def test_turns_of_two_policies_do_not_fill_one_batch(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model)
    home.learn([*turns_of(judged, "ann", 3), *turns_of(judged, "bob", 2)])
    assert (home.head(ANN), home.head(BOB)) == (0, 0)
    assert home.loop.note == "waiting for turns: agent:key:ann: 3 of 4; agent:key:bob: 2 of 4"
    assert home.loop.waits == {Wait.TURNS}


def test_training_ends_with_one_finished_and_one_waiting_policy(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model, max_steps=1)
    home.learn([*turns_of(judged, "ann", 8), *turns_of(judged, "bob", 2)])
    assert home.loop.waits == {Wait.MAX_STEPS, Wait.TURNS}
    last = "agent:key:ann: train.max_steps 1 is reached: version 1 is the last"
    assert home.loop.note == f"{last}; agent:key:bob: waiting for turns: 2 of 4"


def test_candidates_become_the_heads_of_their_own_policies(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model, gate=True)
    home.learn([*turns_of(judged, "ann", 4), *turns_of(judged, "bob", 4)])
    with home.store.read() as conn:
        found = {policy.name: policy.state for policy in policies.list_all(conn) if policy.version}
        assert candidates.list_candidates(conn) == []
    assert found.keys() == {ANN, BOB}
    assert home.head(DEFAULT_NAME) == 0
    for name, state in found.items():
        assert (home.head(name) > 0) == (state is PolicyState.LIVE)


def test_a_rollback_and_an_undo_of_one_leave_the_others(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path / "a", model)
    ann = turns_of(judged, "ann", 12)
    home.learn([*ann, *turns_of(judged, "bob", 8)])
    bob, last = home.files(BOB), home.head(ANN)
    with home.store.write() as conn:
        apply_rollback(conn, plan_rollback(conn, None, name=ANN), learn_again=True, reason="a test")
        assert newest_scores(conn, last, after=0, limit=9, owner=owner_filter("agent", BOB)) != []
    home.learn([])
    assert home.head(ANN) > last, "its turns are trained on again"
    out = ann[4].turn.id
    agreed = check_safe_files(home.store, [out])
    assert [plan.name for plan in agreed] == [ANN]
    with home.store.write() as conn:
        apply_undo(conn, agreed, reason="a test")
        assert retraining.count_batches(conn, BOB) == 0
    home.learn([])
    assert home.used(ANN) == {item.turn.id for item in ann} - {out}
    assert home.files(BOB) == bob


def test_an_undo_by_command_equals_training_without_the_turn(
    tmp_path: Path, judged: Make, model: str
) -> None:
    """The command takes `policy.per` from the home: weights, optimizer and trainer state are the same to the bit."""
    ann, bob = turns_of(judged, "ann", 12), turns_of(judged, "bob", 12, score=-1)
    one_batch_each = {"batch.min_turns": 1, "batch.max_uses": 1}
    both, never = (
        Home(tmp_path / "both", model, **one_batch_each),
        Home(tmp_path / "never", model, **one_batch_each),
    )
    for at in range(0, 12, 4):
        both.learn([*ann[at : at + 4], *bob[at : at + 4]])
        never.learn([turn for turn in ann[at : at + 4] if turn is not ann[0]])
    before, of_bob = both.files(ANN), both.files(BOB)
    said = both.undo("--turn", ann[0].turn.id)
    assert "agent:key:ann: 1 turn taken out; versions trained on them: 1" in said
    assert "3 batches of 11 turns trained on again" in said
    both.learn([])
    assert both.files(ANN) == never.files(ANN) != before
    assert both.files(BOB) == of_bob


def test_an_undo_takes_from_each_policy_its_own_turns(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model)
    home.learn(
        [*turns_of(judged, "ann", 4), *turns_of(judged, "bob", 4), *turns_of(judged, "eve", 3)]
    )
    said = home.undo("--since", "1h").splitlines()
    assert [line for line in said if "taken out" in line] == [
        "agent:key:ann: 4 turns taken out; versions trained on them: 1",
        "agent:key:bob: 4 turns taken out; versions trained on them: 2",
        "agent:key:eve: 3 turns taken out of the training queue; no version was trained on them",
    ]
    home.learn([])
    assert (home.head(ANN), home.head(BOB), home.head("agent:key:eve")) == (0, 0, 0)
    assert home.loop.note.endswith("0 of 4")


def test_an_undo_of_one_policy_leaves_the_others(tmp_path: Path, judged: Make, model: str) -> None:
    home = Home(tmp_path, model)
    home.learn([*turns_of(judged, "ann", 4), *turns_of(judged, "bob", 4)])
    with (
        home.store.read() as conn,
        pytest.raises(OpenClawError, match="none of these 8 turns trains"),
    ):
        select_turns(conn, since=0.0, policy="agent:key:eve")
    said = home.undo("--since", "1h", "--policy", BOB)
    assert "agent:key:bob: 4 turns taken out; versions trained on them: 2" in said
    assert "agent:key:ann" not in said
    assert (home.head(ANN), home.head(BOB)) == (1, 0)


def test_commands_refuse_another_owner_than_the_home_has(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model)
    home.learn(turns_of(judged, "ann", 5))
    there = ("--home", str(tmp_path))
    for words in (
        ("undo", "--since", "1h", "--yes"),
        ("status",),
        ("doctor", "--troubles"),
        ("rollback", "--yes"),
    ):
        done = CliRunner().invoke(cli, [*words, *there, "--set", "policy.per=user"])
        assert isinstance(done.exception, ConfigError), words
        assert "policy.per is user, but the system on this home was last started with agent" in str(
            done.exception
        )
    with home.store.read() as conn:
        assert training_queue_length(from_flat({"home": str(tmp_path)}), conn) == 1, (
            "as the trainer counts them"
        )
    assert CliRunner().invoke(cli, ["status", *there, "--set", "policy.per=agent"]).exit_code == 0


def test_commands_name_the_policy_and_say_when_it_has_no_head(
    tmp_path: Path, judged: Make, model: str
) -> None:
    home = Home(tmp_path, model)
    home.learn(turns_of(judged, "ann", 8))
    with home.store.write() as conn:
        first = policies.lineage(conn, policies.head(conn, ANN).version)[-2]
        apply_rollback(
            conn, plan_rollback(conn, None, name=ANN), learn_again=False, reason="a test"
        )
        candidate = replace(
            policies.get_many(conn, [first])[0], version=99, name=BOB, state=PolicyState.CANDIDATE
        )
        policies.insert_version(conn, candidate, [], PolicyState.CANDIDATE)
        with pytest.raises(OpenClawError, match="'agent:key:bob' has no head yet"):
            policy_names.require_name(conn, BOB)
        with pytest.raises(OpenClawError, match="no policy 'agent:key:eve'"):
            policy_names.require_name(conn, "agent:key:eve")
        again = max(policy.version for policy in policies.list_all(conn) if policy.name == ANN)
    done = CliRunner().invoke(
        cli, ["policies", "promote", str(again), "--yes", "--home", str(tmp_path)]
    )
    assert f"done: openclaw of {ANN} is version {again}," in done.output


def test_an_undo_of_the_shared_parent_affects_all_policies(
    tmp_path: Path, judged: Make, model: str
) -> None:
    """The turn was trained on before there were several policies: each loses it, and new ones start without it."""
    early, ann, bob = (
        turns_of(judged, "", 8),
        turns_of(judged, "ann", 4),
        turns_of(judged, "bob", 4),
    )
    one = Home(tmp_path, model, per="all")
    with one.store.write() as conn:
        policy_names.move_head(conn, policy_names.SHARED_NAME, 0)
    one.learn(early)
    with one.store.write() as conn:
        policy_names.move_head(conn, policy_names.SHARED_NAME, 2)
    one.loop.close()
    home = Home(tmp_path, model)
    home.learn([*ann, *bob])
    agreed = check_safe_files(home.store, [early[5].turn.id])
    assert {plan.name: plan.safe for plan in agreed} == {
        ANN: 1,
        BOB: 1,
        DEFAULT_NAME: 1,
        policy_names.SHARED_NAME: 1,
    }
    with home.store.write() as conn:
        apply_undo(conn, agreed, reason="a test")
    home.learn([])
    rest = {item.turn.id for item in early} - {early[5].turn.id}
    assert home.used(ANN) == rest | {item.turn.id for item in ann}
    assert home.used(DEFAULT_NAME) == rest
    assert home.head("agent:key:new") == 1
    with home.store.read() as conn:
        assert retraining.count_batches(conn) == 0
        assert [
            p.version for p in policies.list_all(conn) if p.state is PolicyState.ROLLED_BACK
        ] == [2, 3, 4]
