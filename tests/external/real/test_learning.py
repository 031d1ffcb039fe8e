"""Scores, the gate and an undo on SmolLM2, in one process: gateway, collector, judge, trainer and engine are real.

A batch of replies is liked twice. Then the same answers are disliked, which contradicts what was learned: the gate
refuses the batch. Then one of the liked turns is undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks.demo.everyday_person import closed_questions
from benchmarks.in_process import Rooms

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, retraining
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.undo import apply_undo, check_safe_files, select_turns
from openclaw_rl.types import FinishReason, Policy, PolicyState

MAX_TOKENS = 24
TEMPERATURE = 0.3
BATCH = 4
SETTINGS: Mapping[str, Any] = {
    "practice.enabled": False,
    "serve.lessons": "off",
    "train.batch.max_wait": 1e9,
}


@dataclass(slots=True, kw_only=True)
class Walk:
    """What happened. `heads`: after each honest batch, after the poisoned one, and after the undo."""

    config: Config
    honest: list[list[str]] = field(default_factory=list)  # turns of each batch
    poisoned: list[str] = field(default_factory=list)
    undone: str = ""
    heads: list[int] = field(default_factory=list)


async def score_batch(rooms: Rooms, score: int) -> list[str]:
    """Ask closed questions, each in a conversation of its own, and score the replies that ended by themselves.

    Returns the turns of one batch. A reply that was cut at its limit teaches nothing by a score.
    """
    scored: list[str] = []
    for one in closed_questions():
        messages = [{"role": "user", "content": one.question}]
        reply = await rooms.say(messages, seed=0, temperature=TEMPERATURE)
        with rooms.read_store() as conn:
            exchange = exchanges.get(conn, reply.id)
        assert exchange is not None
        assert exchange.reply is not None
        if exchange.reply.finish_reason is FinishReason.STOP:
            rooms.give_feedback(reply.id, score=score)
            scored.append(reply.id)
        if len(scored) == BATCH:
            return scored
    raise AssertionError(f"only {len(scored)} replies ended within {MAX_TOKENS} tokens")


async def take_walk(config: Config) -> Walk:
    walk = Walk(config=config)
    async with Rooms(config, max_tokens=MAX_TOKENS) as rooms:
        for _ in range(2):
            walk.honest.append(await score_batch(rooms, 1))
            walk.heads.append(await rooms.settle())
        walk.poisoned = await score_batch(rooms, -1)
        walk.heads.append(await rooms.settle())
        walk.undone = walk.honest[1][0]
        with Store.open(config.store_path, create=False) as store:
            with store.read() as conn:
                selected = select_turns(conn, ids=[walk.undone])
            agreed = check_safe_files(store, selected)
            with store.write() as conn:
                apply_undo(conn, agreed, reason="undone")
        walk.heads.append(await rooms.settle())
    return walk


@pytest.fixture(scope="module")
def walk(small: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Walk:
    home = tmp_path_factory.mktemp("learning")
    return asyncio.run(take_walk(from_flat({**small, **SETTINGS, "home": str(home)})))


@pytest.fixture
def store(walk: Walk) -> Iterator[Store]:
    with Store.open(walk.config.store_path, create=False) as store:
        yield store


def turns_of_version(store: Store, version: int) -> list[str]:
    with store.read() as conn:
        return [use.turn for use in policies.uses_of_version(conn, version)]


def version_of(store: Store, version: int) -> Policy:
    with store.read() as conn:
        (policy,) = policies.get_many(conn, [version])
    return policy


def test_honest_scores_pass_the_gate(walk: Walk, store: Store) -> None:
    assert walk.heads[:2] == [1, 2]
    for version, turns in enumerate(walk.honest, start=1):
        assert sorted(turns_of_version(store, version)) == sorted(turns)
        metrics = version_of(store, version).metrics
        assert metrics["kl/step"] > 0
        assert metrics["gap/embedded"] < 1e-3, "nats per token between the engine and the trainer"


def test_a_batch_that_says_the_opposite_is_refused_whole_and_turn_by_turn(
    walk: Walk, store: Store
) -> None:
    assert walk.heads[2] == 2, "the head stays"
    with store.read() as conn:
        refused = [
            policy for policy in policies.list_all(conn) if policy.state is PolicyState.REJECTED
        ]
    assert refused
    assert refused[0].reason_code is ReasonCode.CONTRADICTION
    assert sorted(turns_of_version(store, refused[0].version)) == sorted(walk.poisoned)
    with store.read() as conn:
        lineage = policies.lineage(conn, policies.head(conn).version)
    trained = {turn for version in lineage for turn in turns_of_version(store, version)}
    assert not trained & set(walk.poisoned)


def test_after_the_undo_of_a_turn_the_version_is_the_one_without_it_to_the_bit(
    walk: Walk, store: Store, tmp_path: Path
) -> None:
    """The reference is a new trainer that takes a step on the other turns, from the same version."""
    head = version_of(store, walk.heads[3])
    rest = turns_of_version(store, head.version)
    assert head.parent == 1
    assert sorted(rest) == sorted(set(walk.honest[1]) - {walk.undone})
    parent = version_of(store, 1)
    config, method = walk.config, make_method(walk.config.train)
    files = ModelFiles.from_config(config.model)
    builder = SampleBuilder(
        renderer=Renderer(files), transient=EphemeralMatcher([]), signal=method, max_staleness=64
    )
    with store.read() as conn:
        items = retraining.repeatable_turns(conn, rest)
    reference = LocalTrainer(str(files.folder), method, config.train, config.model)
    reference.load(folder=parent.path, method_state=parent.memory)
    samples = builder.build_batch(items, parent, [1, 0], any_age=True).samples
    expected = reference.step(samples, str(tmp_path / "reference")).files
    assert OPTIMIZER_FILE in expected
    assert dict(head.files) == dict(expected), "weights, optimizer and trainer state"
