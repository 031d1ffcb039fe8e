"""Episodes from the store to the weights: exchanges of a group of episodes, a batch, its credit, a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.conftest import save_tiny
from tests.store.deaths import DEATH, die, run_in_process

from openclaw_rl.collect.worker import Collector
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import CollectConfig, train_settings
from openclaw_rl.store import reactions
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes, settlement
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd
from openclaw_rl.store.lineage import training_queue
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train import undo
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBatch, SampleBuilder
from openclaw_rl.types import EpisodeStep, Kind, Policy

Fill = Callable[..., list[str]]
VOCABULARY = 64
TRAIN = train_settings(
    {"method": "groups", "optimizer.learning_rate": 1e-3, "safety.max_turn_log_ratio": 99.0}
)
BRANCH = "it is on a branch that the end of its episode does not follow"


def run_episode(
    store: Store,
    fill: Fill,
    name: str,
    steps: int,
    reward: float | None,
    *,
    group: str = "g",
    **more: Any,
) -> list[str]:
    """Walk an episode of one chain of turns to its end; return their ids. Without a reward it is void."""
    request = {"episode": name} | more.pop("request", {})
    with store.write() as conn:
        episodes.open_episode(conn, opened(name, group, **more))
    ids = fill(store, steps, score=None, reply=more.pop("reply", {}), request=request)
    with store.write() as conn:
        for parent, turn in zip([None, *ids], ids, strict=False):
            link(conn, turn, parent)
    end(store, name, reward)
    return ids


def opened(name: str, group: str, size: int = 2, **_: Any) -> Episode:
    times = {"started_at": 1.0, "expires_at": 9e9}
    return Episode(id=name, scope="key", task="t", group=group, size=size, split="train", **times)  # type: ignore[arg-type]


def end(store: Store, name: str, reward: float | None) -> None:
    with store.write() as conn:
        outcome = EpisodeEnd(
            id=name,
            scope="key",
            outcome="void" if reward is None else "done",
            reward=reward,
            at=2.0,
        )
        episodes.end_episode(conn, outcome)
        settlement.settle_episode(conn, name, at=3.0)


def link(conn: Any, turn: str, parent: str | None, kind: Kind = Kind.MAIN) -> None:
    reactions.set_position(
        conn,
        turn,
        session="s",
        parent=parent,
        kind=kind,
        relation="fresh",
        relation_of=None,
        unlinked=None,
    )


def batch_of(store: Store, builder: SampleBuilder, head: Policy, **settings: Any) -> SampleBatch:
    with store.read() as conn:
        groups = training_queue.trainable_groups(conn, limit=9, max_uses=1)
        ids = [turn for group in groups for turn in group]
        items = training_queue.load_judged_turns(conn, ids)
    method = make_method(train_settings({"method": "groups"} | settings))
    return replace(builder, signal=method).build_batch(items, head, [0])


def test_a_group_of_episodes_moves_the_weights(
    store: Store, builder: SampleBuilder, fill: Fill, head: Policy, tmp_path: Path
) -> None:
    """Tokens of the good episode become likelier, those of the bad one less likely; the void one is left out."""
    trainer = LocalTrainer(save_tiny(tmp_path / "base", VOCABULARY), make_method(TRAIN), TRAIN)
    prompt, rng = np.arange(2, 8, dtype=np.int32), np.random.default_rng(0)
    replies = {
        name: TokenSequence(
            prompt_ids=prompt,
            response_ids=rng.integers(2, VOCABULARY, 6).astype(np.int32),
            temperature=1.0,
        )
        for name in ("good", "bad", "broken")
    }
    before = dict(zip(replies, trainer.logprobs(list(replies.values())), strict=True))

    def tokens_of(name: str) -> dict[str, Any]:
        reply = {
            "response_ids": replies[name].response_ids,
            "logprobs": before[name].numpy(),
            "spans": (),
        }
        return {
            "request": {"prompt_ids": prompt},
            "reply": reply | {"mask": np.ones(6, bool)},
            "size": 3,
        }

    run_episode(store, fill, "good", 2, 1.0, **tokens_of("good"))
    run_episode(store, fill, "broken", 1, None, **tokens_of("broken"))
    run_episode(store, fill, "bad", 1, 0.0, **tokens_of("bad"))
    batch = batch_of(store, builder, head)
    whole = {"group": "g", "rewards": (0.0, 1.0)}
    assert [s.episode for s in batch.samples] == [
        EpisodeStep(episode="good", step=0, reward=1.0, **whole),  # type: ignore[arg-type]
        EpisodeStep(episode="good", step=1, reward=1.0, **whole),  # type: ignore[arg-type]
        EpisodeStep(episode="bad", step=0, reward=0.0, **whole),  # type: ignore[arg-type]
    ]
    result = trainer.step(batch.samples, str(tmp_path / "1"))
    assert rejection_reason(result.metrics, TRAIN) is None
    assert (result.metrics["groups/rollouts"], result.metrics["groups/silent"]) == (2.0, 0.0)
    after = dict(zip(replies, trainer.logprobs(list(replies.values())), strict=True))
    assert after["good"].sum() > before["good"].sum()
    assert after["bad"].sum() < before["bad"].sum()


@pytest.mark.parametrize("branches", ["chain", "all"])
def test_a_branch_has_the_outcome_only_with_the_setting(
    store: Store, builder: SampleBuilder, fill: Fill, head: Policy, branches: str
) -> None:
    run_episode(store, fill, "bad", 1, 0.0)
    with store.write() as conn:
        episodes.open_episode(conn, opened("good", "g"))
    ids = fill(store, 3, score=None, request={"episode": "good"})
    with store.write() as conn:
        for turn, parent in zip(
            ids, (None, ids[0], ids[0]), strict=True
        ):  # the second turn is a branch
            link(conn, turn, parent)
    end(store, "good", 1.0)
    batch = batch_of(store, builder, head, branches=branches)
    steps = {
        s.turn: s.episode.step for s in batch.samples if s.episode and s.episode.episode == "good"
    }
    assert steps == {ids[0]: 0, ids[2]: 1} | ({ids[1]: None} if branches == "all" else {})
    assert batch.dropped == (
        {} if branches == "all" else {ids[1]: Reason(ReasonCode.OTHER_BRANCH, BRANCH)}
    )


def test_a_conversation_turn_is_in_no_group(
    builder: SampleBuilder, judged: Any, head: Policy
) -> None:
    item = judged(score=1, hints=("shorter",))
    batch = replace(builder, signal=make_method(TRAIN)).build_batch([item], head, [0])
    why = "it belongs to no episode with a known reward, and the method compares episodes"
    assert batch.dropped == {item.turn.id: Reason(ReasonCode.NO_EPISODE, why)}


@pytest.mark.parametrize("reward", [float("nan"), None])
def test_an_episode_that_is_done_has_a_reward(reward: float | None) -> None:
    with pytest.raises(
        ValueError,
        match="episode e: expected a finite reward with outcome done, and none otherwise",
    ):
        EpisodeEnd(id="e", scope="key", outcome="done", reward=reward, at=1.0)
    with pytest.raises(ValueError, match=r"got 1\.0 with outcome void"):
        EpisodeEnd(id="e", scope="key", outcome="void", reward=1.0, at=1.0)


Loop = Callable[..., tuple[TrainLoop, ScriptedTrainer]]


@pytest.fixture
def loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> Loop:
    def make(
        outcome: Any = lambda samples: {}, **settings: Any
    ) -> tuple[TrainLoop, ScriptedTrainer]:
        train = train_settings({"method": "groups"} | settings)
        trainer = ScriptedTrainer(outcome)
        signal = replace(builder, signal=make_method(train))
        return TrainLoop(store, trainer, signal, train, tmp_path / "policies"), trainer

    return make


def group(store: Store, fill: Fill, name: str, *, steps: int = 2) -> list[str]:
    return [
        turn
        for n in range(2)
        for turn in run_episode(store, fill, f"{name}{n}", steps, float(n), group=name)
    ]


def run(train: TrainLoop, times: int = 12) -> None:
    for _ in range(times):
        train.run_once()


def trained(trainer: ScriptedTrainer) -> list[list[str]]:
    return [sorted({s.turn for s in batch}) for batch in trainer.batches]


def test_a_batch_is_counted_in_whole_groups(store: Store, fill: Fill, loop: Loop) -> None:
    """More turns than `train.batch.max_turns`; the oldest groups first, and each turn once."""
    groups = [group(store, fill, name, steps=12) for name in "abc"]
    train, trainer = loop(**{"batch.min_groups": 2, "batch.max_groups": 2})
    run(train)
    assert trained(trainer) == [sorted(groups[0] + groups[1])]
    assert train.note.endswith("waiting for turns: 1 of 2 groups")
    more = group(store, fill, "d")
    run(train)
    assert trained(trainer)[1:] == [sorted(groups[2] + more)]
    train.close()


def test_a_rollback_returns_the_whole_group(store: Store, fill: Fill, loop: Loop) -> None:
    turns = group(store, fill, "a")
    train, trainer = loop()
    run(train)
    train.close()
    with store.write() as conn:
        apply_rollback(conn, plan_rollback(conn, 0), learn_again=True, reason="test")
    again, second = loop()
    run(again)
    again.close()
    assert trained(trainer) == trained(second) == [sorted(turns)]
    assert [s.episode for s in trainer.batches[0]] == [s.episode for s in second.batches[0]]


def test_an_undone_turn_removes_its_episode_from_the_comparison(
    store: Store, fill: Fill, loop: Loop
) -> None:
    """Three episodes of rewards 0, 1, 2; without the last one the mean is 0.5."""
    names = {f"e{n}": run_episode(store, fill, f"e{n}", 1, float(n), size=3) for n in range(3)}
    train, trainer = loop()
    run(train)
    train.close()
    assert {s.episode.rewards for s in trainer.batches[0] if s.episode} == {(0.0, 1.0, 2.0)}
    with store.write() as conn:
        undo.apply_undo(conn, [undo.plan_undo(conn, names["e2"])], reason="test")
    again, second = loop()
    run(again)
    again.close()
    assert {s.turn: s.episode.rewards for s in second.batches[0] if s.episode} == {
        names["e0"][0]: (0.0, 1.0),
        names["e1"][0]: (0.0, 1.0),
    }


@pytest.mark.parametrize("fatal", ["_insert_steps", "complete_group"])
def test_a_collector_that_dies_during_settlement_settles_nothing(
    store: Store, fill: Fill, monkeypatch: pytest.MonkeyPatch, fatal: str
) -> None:
    """The next one settles the episode whole, once."""
    for name in ("e0", "e1"):
        with store.write() as conn:
            episodes.open_episode(conn, opened(name, "g"))
        fill(store, 2, score=None, request={"episode": name})
        with store.write() as conn:
            outcome = EpisodeEnd(
                id=name, scope="key", outcome="done", reward=float(name[1]), at=2.0
            )
            for _ in range(2):
                episodes.end_episode(conn, outcome)

    def collect_all() -> None:
        with Store.open(store.path) as opened_again:
            collector = Collector(opened_again, CollectConfig())
            while collector.step():
                pass

    with monkeypatch.context() as patch:
        patch.setattr(settlement, fatal, lambda *args: die())
        assert run_in_process(collect_all) == DEATH
    with store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM episode_steps").scalar_one() == 0
        assert {episode.settled_at for episode in episodes.episodes_of_group(conn, "g")} == {None}
    assert run_in_process(collect_all) == 0
    with store.read() as conn:
        (group,) = training_queue.trainable_groups(conn, limit=9, max_uses=1)
        ended = conn.exec_driver_sql(
            "SELECT count(*) FROM events WHERE kind = 'episode.ended'"
        ).scalar_one()
        steps = conn.exec_driver_sql("SELECT episode, step FROM episode_steps ORDER BY 1, 2").all()
    assert len(group) == 4
    assert ended == 2
    assert [tuple(row) for row in steps] == [("e0", 0), ("e1", 0)], "these turns continue no others"
