"""Episodes from the store to the weights: exchanges of a group of episodes, a batch, its credit, a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.conftest import save_tiny

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import EpisodeStep
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import episodes, reactions
from openclaw_rl.store.db import Store
from openclaw_rl.train.gate import rejection_reason
from openclaw_rl.train.sample_builder import SampleBatch, SampleBuilder
from openclaw_rl.types import Episode, EpisodeOutcome, Kind, Policy

Fill = Callable[..., list[str]]
VOCABULARY = 64
TRAIN = train_settings({"method": "groups", "optimizer.learning_rate": 1e-3, "safety.max_turn_log_ratio": 99.0})
DONE: EpisodeOutcome = "done"
VOID: EpisodeOutcome = "void"


def run_episode(
    store: Store, fill: Fill, name: str, steps: int, ended: tuple[EpisodeOutcome, float | None] | None, **more: Any
) -> list[str]:
    """Walk an episode of one chain of turns; return their ids."""
    ids = fill(store, steps, score=None, reply=more.pop("reply", {}), request=more.pop("request", {}))
    begun = Episode(**{"id": name, "task": "t", "group": "g", "split": "train", "started_at": 1.0} | more)
    with store.write() as conn:
        episodes.start_episode(conn, begun)
        episodes.assign_exchanges(conn, name, ids)
        for parent, turn in zip([None, *ids], ids, strict=False):
            link(conn, turn, parent)
        if ended is not None:
            episodes.end_episode(conn, name, outcome=ended[0], reward=ended[1], at=2.0)
    return ids


def link(conn: Any, turn: str, parent: str | None, kind: Kind = Kind.MAIN) -> None:
    reactions.set_position(
        conn, turn, session="s", parent=parent, kind=kind, relation="fresh", relation_of=None, unlinked=None
    )


def batch_of(store: Store, builder: SampleBuilder, head: Policy) -> SampleBatch:
    with store.read() as conn:
        found = episodes.judged_turns_of_group(conn, "g")
    return replace(builder, signal=make_method(TRAIN)).build_batch(found, head, [0])


def test_a_group_of_episodes_moves_the_weights(
    store: Store, builder: SampleBuilder, fill: Fill, head: Policy, tmp_path: Path
) -> None:
    """Tokens of the good episode become likelier, those of the bad one less likely; the void one is left out."""
    trainer = LocalTrainer(save_tiny(tmp_path / "base", VOCABULARY), make_method(TRAIN), TRAIN)
    prompt, rng = np.arange(2, 8, dtype=np.int32), np.random.default_rng(0)
    replies = {
        name: TokenSequence(
            prompt_ids=prompt, response_ids=rng.integers(2, VOCABULARY, 6).astype(np.int32), temperature=1.0
        )
        for name in ("good", "bad", "broken")
    }
    before = dict(zip(replies, trainer.logprobs(list(replies.values())), strict=True))

    def tokens_of(name: str) -> dict[str, Any]:
        reply = {"response_ids": replies[name].response_ids, "logprobs": before[name].numpy(), "spans": ()}
        return {"request": {"prompt_ids": prompt}, "reply": reply | {"mask": np.ones(6, bool)}}

    run_episode(store, fill, "good", 2, (DONE, 1.0), **tokens_of("good"))
    run_episode(store, fill, "bad", 1, (DONE, 0.0), **tokens_of("bad"))
    run_episode(store, fill, "broken", 1, (VOID, None), **tokens_of("broken"))
    batch = batch_of(store, builder, head)
    assert [s.episode for s in batch.samples] == [
        EpisodeStep(group="g", episode="bad", step=0, outcome=0.0),
        EpisodeStep(group="g", episode="good", step=0, outcome=1.0),
        EpisodeStep(group="g", episode="good", step=1, outcome=1.0),
    ]
    assert list(batch.dropped.values()) == ["its episode is void: the environment failed"]
    result = trainer.step(batch.samples, str(tmp_path / "1"))
    assert rejection_reason(result.metrics, TRAIN) is None
    assert (result.metrics["groups/rollouts"], result.metrics["groups/silent"]) == (2.0, 0.0)
    after = dict(zip(replies, trainer.logprobs(list(replies.values())), strict=True))
    assert after["good"].sum() > before["good"].sum()
    assert after["bad"].sum() < before["bad"].sum()


def test_only_known_rewards_of_the_training_split_train(
    store: Store, builder: SampleBuilder, fill: Fill, head: Policy
) -> None:
    running, held = (
        run_episode(store, fill, "1", 1, None),
        run_episode(store, fill, "2", 1, (DONE, 1.0), split="held_out"),
    )
    unknown, first = run_episode(store, fill, "3", 1, (DONE, None)), run_episode(store, fill, "4", 3, (DONE, 0.5))
    with store.write() as conn:
        link(conn, first[2], first[0])  # the second turn is now a branch
    batch = batch_of(store, builder, head)
    assert batch.dropped == {
        running[0]: "the reward of its episode is not known",
        unknown[0]: "the reward of its episode is not known",
        held[0]: "its task is held out",
        first[1]: "it is on a branch that the end of its episode does not follow",
    }
    assert {s.turn: s.episode.step for s in batch.samples if s.episode} == {first[0]: 0, first[2]: 1}


def test_a_conversation_has_no_place_in_a_group(builder: SampleBuilder, judged: Any, head: Policy) -> None:
    item = judged(score=1, hints=("shorter",))
    batch = replace(builder, signal=make_method(TRAIN)).build_batch([item], head, [0])
    assert batch.dropped == {item.turn.id: "it belongs to no episode, and the method compares episodes"}


def test_an_outcome_is_given_once(store: Store, fill: Fill) -> None:
    run_episode(store, fill, "e", 1, (DONE, 0.5))
    with store.write() as conn:
        assert episodes.end_episode(conn, "e", outcome=DONE, reward=0.5, at=9.0).ended_at == 2.0
        assert episodes.get_episode(conn, "e") == Episode(
            id="e", task="t", group="g", split="train", started_at=1.0, outcome=DONE, reward=0.5, ended_at=2.0
        )
        with pytest.raises(ValueError, match=r"episode e: it has ended: done, 0.5; got void, None"):
            episodes.end_episode(conn, "e", outcome=VOID, reward=None, at=9.0)
        with pytest.raises(KeyError):
            episodes.end_episode(conn, "other", outcome=VOID, reward=None, at=9.0)


@pytest.mark.parametrize(("outcome", "reward"), [(VOID, 1.0), (None, 1.0), (DONE, float("nan"))])
def test_a_reward_is_a_number_of_an_episode_that_is_done(outcome: EpisodeOutcome | None, reward: float) -> None:
    with pytest.raises(ValueError, match="episode e: expected a finite reward of an episode that is done, or none"):
        Episode(id="e", task="t", group="g", split="train", started_at=1.0, outcome=outcome, reward=reward)
