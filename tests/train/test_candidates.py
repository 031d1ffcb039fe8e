"""A step's result is a candidate until the gate has decided, also across deaths, rollbacks and lost leases."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.train.conftest import put

from openclaw_rl.cli.main import cli
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import from_flat, train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, head_moves, policies, policy_marks, training_queue
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.worker import open_train_loop
from openclaw_rl.types import JudgedTurn, Policy, PolicyState

Fill = Callable[..., list[str]]
MakeLoop = Callable[..., TrainLoop]


@pytest.fixture
def make_loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[MakeLoop]:
    opened: list[TrainLoop] = []

    def make(
        gain: Callable[[Sample], float] = lambda sample: 0.1 * (sample.reward or 0), **gate: Any
    ) -> TrainLoop:
        for loop in opened:
            loop.close()
        train = train_settings({"batch_min": 4, "batch_max": 4})
        settings = GateConfig(**gate)
        trainer = ScriptedTrainer(gain=gain)
        opened.append(
            TrainLoop(
                store,
                trainer,
                builder,
                train,
                tmp_path / "policies",
                LoopParts(gate=CandidateGate(store, settings)),
            )
        )
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def all_versions(store: Store) -> list[Policy]:
    with store.read() as conn:
        return policies.list_all(conn)


def head_of(store: Store) -> int:
    with store.read() as conn:
        return policies.head(conn).version


def settle(loop: TrainLoop) -> None:
    while loop.run_once():
        pass


def fill_both(store: Store, fill: Fill) -> list[str]:
    return [*fill(store, 2, score=1), *fill(store, 2, score=-1)]


def test_a_candidate_does_not_serve_before_the_gate_decides(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    fill(store, 12, score=1)
    batch = fill_both(store, fill)
    loop = make_loop()
    assert loop.run_once()
    (candidate,) = [p for p in all_versions(store) if p.state is PolicyState.CANDIDATE]
    assert (candidate.version, head_of(store)) == (1, 0)
    assert Path(str(candidate.path)).is_dir()
    settle(loop)
    assert [p.state for p in all_versions(store)] == [PolicyState.LIVE] * 5
    newest = all_versions(store)[-1]
    with store.read() as conn:
        assert sorted(use.turn for use in policies.uses_of_version(conn, newest.version)) == sorted(
            batch
        )
    assert newest.metrics["gate/held_out"] > 0.9
    assert newest.metrics["gate/held_out/count"] == 12


def test_a_worse_candidate_is_rejected_and_its_batch_bisected(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    fill(store, 12, score=1)
    settle(make_loop())
    bad = fill_both(store, fill)
    settle(make_loop(gain=lambda sample: -0.1 * (sample.reward or 0)))
    rejected = [p for p in all_versions(store) if p.state is PolicyState.REJECTED]
    assert head_of(store) == 3
    assert [len(uses_of(store, p.version)) for p in rejected] == [4, 2, 1, 1, 2, 1, 1][
        : len(rejected)
    ]
    assert all("held-out turns" in str(p.reason) for p in rejected)
    assert all(p.path is None for p in rejected)
    with store.read() as conn:
        reasons = [str(found.untrainable) for turn in bad if (found := turns.get(conn, turn))]
    assert all(
        words.startswith("a step on it alone was rejected: it is worse than the head")
        for words in reasons
    )
    folder = Path(str(all_versions(store)[3].path)).parent
    assert len(list(folder.iterdir())) == 3, "the folders of rejected candidates are removed"


def uses_of(store: Store, version: int) -> list[str]:
    with store.read() as conn:
        return [use.turn for use in policies.uses_of_version(conn, version)]


def test_a_moved_head_frees_the_turns_of_a_candidate(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    fill(store, 4)
    loop = make_loop()
    settle(loop)
    batch = fill(store, 4)
    assert loop.run_once()
    with store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="worse", at=1.0)
    settle(loop)
    second = all_versions(store)[2]
    assert (second.state, uses_of(store, 2)) == (PolicyState.REJECTED, [])
    assert "no longer the head" in str(second.reason)
    with store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
    assert set(batch) <= {turn for version in line for turn in uses_of(store, version)}, (
        "they are trained on again"
    )


@pytest.mark.parametrize(("score", "state"), [(1, PolicyState.LIVE), (-1, PolicyState.REJECTED)])
def test_a_canary_answers_a_share_before_it_becomes_the_head(
    store: Store, make_loop: MakeLoop, fill: Fill, score: int, state: PolicyState
) -> None:
    fill(store, 4, request={"version": 0})
    settle(make_loop(canary=0.5))
    (canary,) = [p for p in all_versions(store) if p.state is PolicyState.CANDIDATE]
    with store.read() as conn:
        mark = policy_marks.find_canary(conn, canary.name)
    assert mark is not None
    assert (mark.version, mark.share, head_of(store)) == (canary.version, 0.5, 0)
    fill(store, 30, score=-score, request={"version": 0})
    fill(store, 2, score=score, request={"version": canary.version})
    loop = make_loop(canary=0.5)  # after a restart
    loop.run_once()
    assert "answers 50% of the conversations: people were satisfied with" in loop.note
    assert head_of(store) == 0, "too few turns"
    fill(store, 30, score=score, request={"version": canary.version})
    assert loop.run_once()
    decided = all_versions(store)[1]
    assert decided.state is state
    assert decided.metrics["gate/canary/count"] == 32
    with store.read() as conn:
        assert policy_marks.find_canary(conn, canary.name) is None
    if state is PolicyState.REJECTED:
        assert decided.reason is not None
        assert decided.reason.startswith("canary: people were satisfied with 0 of its 32")
        assert not Path(str(canary.path)).exists()


@pytest.mark.parametrize("how", ["promoted by hand", "rolled back from its parent"])
def test_a_head_that_is_moved_by_hand_ends_the_canary(
    store: Store, make_loop: MakeLoop, fill: Fill, how: str, tmp_path: Path
) -> None:
    """Without it, the version would go on answering its share, also after it was rolled back itself."""
    fill(store, 4, request={"version": 0})
    settle(make_loop())
    fill(store, 4, request={"version": 1})
    settle(make_loop(canary=0.5))
    with store.read() as conn:
        mark = policy_marks.find_canary(conn, "default")
    assert mark is not None
    assert (mark.version, head_of(store)) == (2, 1)
    words = ["policies", "promote", "2"] if how == "promoted by hand" else ["rollback", "0"]
    done = CliRunner().invoke(cli, [*words, "--yes", "--home", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert head_of(store) == (2 if how == "promoted by hand" else 0)
    with store.read() as conn:
        assert policy_marks.all_canaries(conn) == {}
    settle(make_loop(canary=0.5))
    assert all_versions(store)[2].state is (
        PolicyState.LIVE if how == "promoted by hand" else PolicyState.REJECTED
    )


CHILD = """
import os, signal, sys
from pathlib import Path
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store.db import Store
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

class Trainer(ScriptedTrainer):
    def score(self, samples):
        os.kill(os.getpid(), signal.SIGKILL)

home, store = Path(sys.argv[1]), Store.open(Path(sys.argv[1]) / "store.db")
renderer = Renderer(ModelFiles.from_path(STARTER))
method = make_method(train_settings({"method": "combine"}))
builder = SampleBuilder(renderer=renderer, transient=EphemeralMatcher([]), signal=method, max_staleness=64)
train = train_settings({"batch_min": 4, "batch_max": 4, "safety.lease_ttl": 0.5})
parts = LoopParts(gate=CandidateGate(store, GateConfig()))
loop = TrainLoop(store, Trainer(), builder, train, home / "policies", parts)
while True:
    loop.run_once()
"""


def die_examining(home: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", CHILD, str(home)], timeout=240, check=False)
    assert dead.returncode == -signal.SIGKILL


def test_a_trainer_killed_during_the_gate_continues_with_the_candidate(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path
) -> None:
    ids = fill(store, 5)
    die_examining(tmp_path)
    with store.read() as conn:
        (candidate,) = candidates.list_candidates(conn)
        waiting = training_queue.trainable_turns(
            conn, limit=9, max_uses=1, need_score=True, need_hint=True
        )
    assert Path(str(candidate.path)).is_dir()
    loop = make_loop()
    while head_of(store) == 0:
        loop.run_once()
    assert [(p.version, p.state) for p in all_versions(store)] == [
        (0, PolicyState.LIVE),
        (1, PolicyState.LIVE),
    ]
    assert uses_of(store, 1) == sorted(ids[:4]), "each turn is trained on once"
    assert ids[4] in [item.turn.id for item in waiting]


def test_a_candidate_on_which_trainers_died_twice_is_rejected(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path
) -> None:
    fill(store, 5)
    die_examining(tmp_path)
    die_examining(tmp_path)
    loop = make_loop()
    while all_versions(store)[1].state is PolicyState.CANDIDATE:
        loop.run_once()
    assert (
        all_versions(store)[1].reason == "the trainer died 2 times while it examined this version"
    )
    assert head_of(store) == 0


def test_a_damaged_candidate_is_rejected_and_its_turns_are_trained_on_again(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    fill(store, 4)
    settle(make_loop())
    batch = fill(store, 4)
    assert make_loop().run_once()
    with store.read() as conn:
        (candidate,) = candidates.list_candidates(conn)
    (Path(str(candidate.path)) / "adapter_model.safetensors").write_bytes(b"damaged")
    loop = make_loop()  # knows nothing of the files
    settle(loop)
    assert [p.state for p in all_versions(store)[2:]] == [PolicyState.REJECTED, PolicyState.LIVE]
    assert "its files are damaged" in str(all_versions(store)[2].reason)
    assert uses_of(store, 3) == sorted(batch)


def test_the_gate_is_made_by_its_setting(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    """With each gate.kind, another result of a step is refused."""

    def worse(sample: Sample) -> float:
        return -0.1 * (sample.reward or 0)

    fill(store, 12)
    settle(make_loop(kind="numbers"))
    fill(store, 4)
    settle(make_loop(worse, kind="numbers"))
    assert head_of(store) == 4, "numbers: not compared with the head"
    far = make_loop(worse, kind="off")
    far._trainer._trainer.outcome = lambda samples: {"kl/step": 1.0}  # type: ignore[attr-defined]
    fill(store, 4)
    settle(far)
    assert head_of(store) == 5, "off: not even bounded"
    far = make_loop(kind="numbers")
    far._trainer._trainer.outcome = lambda samples: {"kl/step": 1.0}  # type: ignore[attr-defined]
    fill(store, 4)
    settle(far)
    assert head_of(store) == 5


@pytest.mark.system
def test_the_shipped_model_passes_the_gate(
    judged: Callable[..., JudgedTurn], starter_identity: str, tmp_path: Path
) -> None:
    """Honest turns pass the real trainer's gate. With gate.strict, turns with inverted verdicts are not trained on."""
    settings = {
        "train.batch.min_turns": 4,
        "train.batch.max_turns": 4,
        "gate.budget": 0,
        "gate.strict": True,
    }
    config = from_flat({"home": str(tmp_path)} | settings)
    store = Store.open(config.store_path)
    loop = open_train_loop(config, store)

    def turn(words: str, score: int) -> JudgedTurn:
        """With the log-probabilities that the loaded policy gives to the reply."""
        how: dict[str, Any] = {
            "question": QUESTION,
            "words": words,
            "request": {"identity": starter_identity},
        }
        exchange = judged(**how).exchange
        assert exchange.reply is not None
        sample = Sample(
            turn="t",
            agent="",
            prompt_ids=exchange.request.prompt_ids,
            response_ids=exchange.reply.response_ids,
            logprobs=exchange.reply.logprobs,
            mask=exchange.reply.mask,
            temperature=1.0,
            version=0,
            reward=1.0,
        )
        (logprobs,) = loop._trainer._trainer.score([sample])
        return judged(**how, score=score, reply={"logprobs": logprobs})

    for _ in range(4):
        put(store, [turn(words, score) for words, score in ((SHORT, 1), (LONG, -1)) * 2])
        settle(loop)
    honest = all_versions(store)
    assert [p.state for p in honest] == [PolicyState.LIVE] * 5
    assert honest[-1].metrics["gate/held_out"] > 0.1
    assert honest[-1].metrics["gate/agreement"] > 0.1
    poison = put(store, [turn(words, score) for words, score in ((SHORT, -1), (LONG, 1)) * 2])
    settle(loop)
    assert head_of(store) == 4
    assert {p.state for p in all_versions(store)[5:]} == {PolicyState.REJECTED}
    with store.read() as conn:
        assert all((found := turns.get(conn, turn)) and found.untrainable for turn in poison)
    assert len(list(config.policies_dir.iterdir())) == 4, (
        "the folders of steps on a batch alone are removed"
    )
    loop.close()
    store.close()


QUESTION, SHORT = "What is the capital of France?", "The capital of France is Paris."
LONG = (
    "Certainly. The capital of France is Paris. Do not hesitate to ask again should you need more."
)
