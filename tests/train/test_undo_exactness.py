"""After an undo the policy equals, to the bit, one that was trained without the undone turns. With the real trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.learner.conftest import save_tiny
from tests.train.conftest import IDENTITY, put

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.baseline import ScoreBaseline
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, TrainConfig, train_settings
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, retraining, token_credit
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.undo import apply_undo, check_safe_files, select_turns
from openclaw_rl.types import JudgedTurn, PolicyState

pytestmark = pytest.mark.system

SESSIONS = 10
LOOSE = {  # the log-probabilities of the turns are invented
    "safety.max_turn_log_ratio": 99,
    "loss.token_ratio_min": 1e-6,
    "loss.token_ratio_max": 1e6,
    "optimizer.warmup_steps": 4,
    "batch.min_turns": 1,
    "lora.dropout": 0.1,
}


class World:
    """A home with the real trainer, and the turns of ten sessions."""

    def __init__(self, home: Path, train: TrainConfig, model: str = STARTER) -> None:
        """`model`: folder of the trained model; the tokens are the starter's."""
        home.mkdir()
        self.store = Store.open(home / "store.db")
        with self.store.write() as conn:
            policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
        files, method = ModelFiles.from_path(STARTER), make_method(train)
        self.folder = str(files.folder) if model == STARTER else model
        self.trainer = LocalTrainer(self.folder, method, train)
        self.builder = SampleBuilder(
            renderer=Renderer(files),
            transient=EphemeralMatcher([]),
            signal=method,
            max_staleness=64,
        )
        self.loop = TrainLoop(self.store, self.trainer, self.builder, train, home / "policies")

    def train_on(self, batch: Sequence[JudgedTurn]) -> None:
        put(self.store, list(batch))
        assert self.loop.run_once(), self.loop.note

    def batches(self, versions: Sequence[int]) -> list[list[str]]:
        with self.store.read() as conn:
            return [[use.turn for use in policies.uses_of_version(conn, v)] for v in versions]

    def head_files(self) -> dict[str, str | None]:
        with self.store.read() as conn:
            head = policies.head(conn)
        assert OPTIMIZER_FILE in head.files
        return dict(head.files)

    def undo(self, **selected: Any) -> None:
        with self.store.read() as conn:
            turns = select_turns(conn, **selected)
        agreed = check_safe_files(self.store, turns)
        with self.store.write() as conn:
            apply_undo(conn, agreed, reason="undone")

    def finish_retraining(self) -> None:
        while self.left():
            assert self.loop.run_once(), self.loop.note

    def left(self) -> int:
        with self.store.read() as conn:
            return retraining.count_batches(conn)


def conversations(judged: Callable[..., JudgedTurn], *, hints: bool) -> list[list[JudgedTurn]]:
    """Ten batches of four turns; each has turns of two or three sessions, of two agents."""
    turns = []
    for n in range(4 * SESSIONS):
        about = {"session": f"s{n // 4}", "agent": f"a{n % 3}"}
        hint = (f"Answer in {n % 5 + 1} words.",) if hints and n % 3 else ()
        score = (1, -1, -1, 1, -1)[n % 5]
        turns.append(
            judged(
                score=score,
                hints=hint,
                request=about,
                words=f"Number {n}.",
                question=f"What is {n}?",
            )
        )
    shifted = turns[2:] + turns[:2]
    return [shifted[at : at + 4] for at in range(0, len(shifted), 4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random model with the starter's vocabulary."""
    vocabulary = json.loads((ModelFiles.from_path(STARTER).folder / "config.json").read_text())[
        "vocab_size"
    ]
    return save_tiny(tmp_path_factory.mktemp("model"), vocabulary=vocabulary)


@pytest.mark.parametrize("method", ["binary", "combine"])
def test_undo_of_one_session_among_ten(
    method: str, tmp_path: Path, judged: Callable[..., JudgedTurn], model: str
) -> None:
    undo_and_compare(method, tmp_path, judged, model)


def undo_and_compare(
    method: str, tmp_path: Path, judged: Callable[..., JudgedTurn], model: str
) -> None:
    train = train_settings({"method": method, **LOOSE})
    batches = conversations(judged, hints=method == "combine")
    undone = World(tmp_path / "a", train, model)
    for batch in batches:
        undone.train_on(batch)
    check_credit(undone, method)
    before = undone.head_files()
    undone.undo(names=["s4"])
    with undone.store.read() as conn:
        assert policies.head(conn).version == 3, "the first version with a turn of the session is 4"
    undone.finish_retraining()
    never = World(tmp_path / "b", train, model)
    for batch in batches:
        if rest := [item for item in batch if item.exchange.request.session != "s4"]:
            never.train_on(rest)
    assert undone.head_files() == never.head_files(), "weights, optimizer and trainer state"
    assert undone.head_files() != before
    with undone.store.read() as conn:
        head = policies.head(conn)
        assert policies.lineage(conn, head.version)[-4:] == [3, 2, 1, 0]
        states = {policy.version: policy.state for policy in policies.list_all(conn)}
        assert all(states[v] is PolicyState.ROLLED_BACK for v in range(4, 11))
        assert {p.metrics.get("retrained") for p in policies.get_many(conn, range(11, 99))} == {1.0}
        assert not {
            t for batch in undone.batches(policies.lineage(conn, head.version)) for t in batch
        } & {
            item.turn.id
            for batch in batches
            for item in batch
            if item.exchange.request.session == "s4"
        }


def check_credit(world: World, method: str) -> None:
    """The stored credit of binary is score minus baseline, on each token of the reply."""
    with world.store.read() as conn:
        for version in range(1, 11):
            credit, parent = (
                token_credit.credit_of_version(conn, version),
                policies.get(conn, version - 1),
            )
            assert parent is not None
            items = retraining.repeatable_turns(
                conn, [use.turn for use in policies.uses_of_version(conn, version)]
            )
            assert credit.keys() == {item.turn.id for item in items}
            baseline = ScoreBaseline(parent.memory, decay=0.95, shrink=8.0)
            for item in items if method == "binary" else ():
                assert item.exchange.reply is not None
                count = len(item.exchange.reply.response_ids)
                advantage = float(item.verdict.score or 0) - baseline.read(
                    item.exchange.request.agent
                )
                assert float(credit[item.turn.id].astype("f8").sum()) == pytest.approx(
                    count * advantage, rel=1e-3
                )


def test_replays_are_repeated_where_they_were(
    tmp_path: Path, judged: Callable[..., JudgedTurn], model: str
) -> None:
    """The reference takes the recorded batches without the session, by the trainer alone."""
    train = train_settings(
        {"method": "combine", "batch.max_uses": 2, "batch.replay_ratio": 0.5, **LOOSE}
    )
    world = World(tmp_path / "a", train, model)
    for batch in conversations(judged, hints=True):
        world.train_on(batch)
    recorded = world.batches(range(1, 11))
    assert len(recorded[1]) > 4, "some turns of the first batch came again"
    with world.store.read() as conn:
        out = set(select_turns(conn, names=["s4"]))
        items = {
            t: item for b in recorded for t in b for item in retraining.repeatable_turns(conn, [t])
        }
        root = policies.get(conn, 0)
        assert root is not None
    world.undo(names=["s4"])
    world.finish_retraining()
    reference = LocalTrainer(world.folder, make_method(train), train)
    seen: set[str] = set()
    for number, batch in enumerate(recorded):
        kept = [items[turn] for turn in batch if turn not in out]
        replays = {item.turn.id for item in kept} & seen
        seen |= {item.turn.id for item in kept}
        samples = world.builder.build_batch(kept, root, [0], replays=replays).samples
        files = reference.step(samples, str(tmp_path / "reference" / str(number))).files
    assert world.head_files() == files


def test_an_undo_goes_back_to_a_version_with_optimizer_state(
    tmp_path: Path, judged: Callable[..., JudgedTurn], model: str
) -> None:
    train = train_settings({"method": "combine", "checkpoint.keep": 2, **LOOSE})
    batches = conversations(judged, hints=True)
    undone, never = World(tmp_path / "a", train, model), World(tmp_path / "b", train, model)
    last = batches[6][0].turn.id
    for batch in batches:
        undone.train_on(batch)
        never.train_on([item for item in batch if item.turn.id != last])
    undone.undo(ids=[last])
    with undone.store.read() as conn:
        assert policies.head(conn).version == 0, "versions 1 to 8 no longer have an optimizer state"
    undone.finish_retraining()
    assert undone.head_files() == never.head_files()
