"""What the local trainer does with turns that another policy wrote, and what it tells of them; a step on groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import BrokenPolicy
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.staleness import drop_stale, stale_turns
from openclaw_rl.learner.step_metrics import ALL_MASKED
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.types import EpisodeStep

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]


def reply(turn: str, gaps: list[float], version: int = 3) -> tuple[Sample, torch.Tensor]:
    """A sample whose tokens' log-ratios are given, and what the policy says of it."""
    r = len(gaps)
    sample = Sample(
        turn=turn, agent="a", prompt_ids=np.arange(2, dtype=np.int32), response_ids=np.arange(r, dtype=np.int32),
        logprobs=np.full(r, -1.0, np.float32), mask=np.ones(r, bool), temperature=1.0, version=version, reward=1.0,
    )  # fmt: skip
    return sample, torch.tensor(gaps) - 1.0


def kept_of(
    replies: list[tuple[Sample, torch.Tensor]], **bounds: float
) -> tuple[list[str], dict[str, str]]:
    samples = [s for s, _ in replies]
    kept, dropped = drop_stale(samples, [logp for _, logp in replies], **bounds)
    assert {samples[i].turn for i in kept} | dropped.keys() == {s.turn for s in samples}
    return [samples[i].turn for i in kept], dropped


def test_the_stalest_turns_are_dropped_down_to_the_bound_of_the_batch() -> None:
    replies = [
        reply("a", [0.1] * 4),
        reply("b", [-0.4] * 2),
        reply("c", [0.3, -0.3]),
        reply("d", [0.9] * 9),
    ]
    kept, dropped = kept_of(replies, max_gap=0.5, max_batch_gap=0.2)
    assert kept == ["a", "c"], "b goes for the batch, d by itself"
    assert dropped["d"].detail.endswith(
        "policy being trained, above train.safety.max_turn_log_ratio 0.5"
    )
    assert (
        "too stale: mean |log ratio| 0.40, of its whole batch 0.23 between version 3 "
        in dropped["b"].detail
    )
    assert dropped["b"].detail.endswith(
        "policy being trained, above train.safety.max_batch_log_ratio 0.2"
    )


def test_stale_replays_are_dropped_before_fresh_turns() -> None:
    """Fresh turns are kept or left out as if they were alone; of the replays the stalest go."""
    fresh = [reply("a", [0.4]), reply("b", [0.05])]

    def replays(*gaps: float) -> list[tuple[Sample, torch.Tensor]]:
        made = [reply(f"r{n}", [gap]) for n, gap in enumerate(gaps)]
        return [(replace(sample, replay=True), logp) for sample, logp in made]

    bounds = {"max_gap": 0.5, "max_batch_gap": 0.25}
    assert kept_of(fresh, **bounds)[0] == ["a", "b"]
    kept, dropped = kept_of([*replays(0.39, 0.39), *fresh], **bounds)
    assert kept == ["a", "b"]
    assert dropped["r0"].detail.endswith("above train.safety.max_batch_log_ratio 0.25")
    assert kept_of([*fresh, *replays(0.4, 0.39, 0.1)], **bounds)[0] == ["a", "b", "r1", "r2"]
    assert kept_of([*fresh, *replays(0.0), reply("c", [0.45])], **bounds)[0] == ["a", "b", "r0"], (
        "no replay saves c"
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6), max_size=8))
def test_the_largest_set_within_both_bounds_is_kept(gaps: list[list[float]]) -> None:
    replies = [reply(f"{n}", values) for n, values in enumerate(gaps)]
    kept, dropped = kept_of(replies, max_gap=0.5, max_batch_gap=0.3)
    means = {
        f"{n}": float(np.abs(np.float32(v) + np.float32(-1) + 1).mean()) for n, v in enumerate(gaps)
    }
    chosen = [abs(x) for n in kept for x in gaps[int(n)]]
    assert all(means[n] <= 0.5 + 1e-6 for n in kept)
    assert not chosen or np.mean(chosen) <= 0.3 + 1e-6
    within = [n for n in dropped if means[n] <= 0.5 - 1e-6]
    assert all(means[n] >= means[other] - 1e-6 for n in within for other in kept), (
        "the freshest stay"
    )
    assert kept_of(replies, max_gap=9.0, max_batch_gap=9.0)[0] == [f"{n}" for n in range(len(gaps))]


def test_non_finite_log_probabilities_raise_broken_policy() -> None:
    sample, _ = reply("a", [0.0])
    with pytest.raises(BrokenPolicy, match=r"turn a: expected finite log-probabilities.*roll back"):
        drop_stale([sample], [torch.tensor([float("nan")])], max_gap=0.5, max_batch_gap=0.5)


def row_of(s: Sample) -> TokenSequence:
    return TokenSequence(
        prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=s.temperature
    )


def moved(trainer: LocalTrainer, samples: list[Sample], by: list[float]) -> list[Sample]:
    """As if each had been sampled with log-probabilities that much below the policy's (rho = exp(by))."""
    truth = trainer.logprobs([row_of(s) for s in samples])
    return [
        replace(s, logprobs=(t.numpy() - gap).astype(np.float32))
        for s, t, gap in zip(samples, truth, by, strict=True)
    ]


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_masked_share_is_a_metric(
    trainer: Make, draw: Draw, tmp_path: Path, epochs: int
) -> None:
    """Four bad replies, one of which the policy has moved away from, one of which an engine saw quite otherwise."""
    off = [0.0, -0.2, 0.9, 0.0]
    for mask, share_of in (("none", ()), ("opsm", (1,)), ("geometric", (1, 2))):
        made = trainer(
            "binary", sequence_mask=mask, opsm_delta=0.1, geometric_low=0.95, geometric_high=1.05, gap_high=2.0,
            max_gap=9.0, learning_rate=1e-6, epochs=epochs,
        )  # fmt: skip
        batch = moved(made, draw(made, 4, 4, reward=-1.0), off)
        tokens = [int(s.mask.sum()) for s in batch]
        metrics = made.step(batch, str(tmp_path / mask)).metrics

        def share(of: tuple[int, ...], tokens: list[int] = tokens) -> float:
            return pytest.approx(sum(tokens[i] for i in of) / sum(tokens), abs=1e-9)  # type: ignore[no-any-return]

        assert metrics["masked/opsm"] == share(share_of if mask == "opsm" else ())
        assert metrics["masked/geometric"] == share(share_of if mask == "geometric" else ())
        assert metrics["masked/gap"] == share((2,) if epochs == 1 else ())
        assert metrics["capped/binary"] == share(
            (2,) if epochs == 2 and mask != "geometric" else ()
        )
        assert metrics["gap/max"] == pytest.approx(0.9, abs=1e-4)
        assert metrics["ratio/max"] == pytest.approx(np.exp(0.9), abs=1e-3)
        k3 = sum(n * (np.expm1(gap) - gap) for n, gap in zip(tokens, off, strict=True)) / sum(
            tokens
        )
        assert metrics["kl/mu"] == pytest.approx(k3, rel=1e-3)
        assert metrics["gap"] == pytest.approx(
            sum(n * abs(g) for n, g in zip(tokens, off, strict=True)) / sum(tokens)
        )


def test_a_masked_reply_has_no_effect(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """With OPSM the step is the one that the other replies alone would take, were they as many."""
    settings_ = {"opsm_delta": 0.1, "max_gap": 9.0, "kl_coef": 0.0, "clip_grad": 1e9}
    made, plain = (
        trainer("binary", sequence_mask="opsm", **settings_),
        trainer("binary", **settings_),
    )
    batch = moved(made, draw(made, 6, 4, reward=-1.0), [0.0, -0.15, 0.0, -0.15])
    silenced = [replace(s, mask=s.mask & (i % 2 == 0)) if i % 2 else s for i, s in enumerate(batch)]
    norm = made.step(batch, str(tmp_path / "masked")).metrics["gradient/norm"]
    free = plain.step(batch, str(tmp_path / "free")).metrics["gradient/norm"]
    assert norm != pytest.approx(free, rel=1e-3)
    alone = trainer("binary", **settings_)
    others = [s for s in silenced if s.mask.any()]
    slow = sum(int(s.mask.sum()) for s in batch) / len(batch)
    alone.load(folder=None, method_state={"reply_tokens": slow})
    half = alone.step(others, str(tmp_path / "alone")).metrics["gradient/norm"]
    assert norm == pytest.approx(half * len(others) / len(batch), rel=1e-4), (
        "masked tokens stay in the denominator"
    )


def test_a_batch_of_another_policy_is_left_out(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer("binary", max_gap=0.5)
    batch = draw(made, 2, 5, reward=1.0)
    stale = made.step(moved(made, batch, [0.4] * 5), str(tmp_path / "stale"))
    assert stale.folder is None
    assert all("of its whole batch 0.40" in why.detail for why in stale.dropped.values())
    some = made.step(moved(made, batch, [0.0, 0.0, 0.0, 0.0, 0.8]), str(tmp_path / "some"))
    assert some.metrics["dropped/stale"] == len(some.dropped) == 1
    assert some.metrics["turns"] == 4


OPSM = {"sequence_mask": "opsm", "opsm_delta": 0.01, "max_gap": 9.0, "max_batch_gap": 9.0}
SILENT = """
def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio):
    return -(teacher_logprobs - student_logprobs).detach().mean() * student_logprobs.mean()
"""


@pytest.mark.parametrize(
    ("further", "off"),
    [
        ({"sequence_mask": "geometric"}, 0.05),
        ({"sequence_mask": "geometric", "epochs": 2}, 0.05),
        (OPSM | {"kl_coef": 0.0}, -0.15),
        (OPSM, -0.15),  # the KL would pull, but nothing asks for a step
        ({"max_gap": 9.0, "max_batch_gap": 9.0}, 1.9),  # beyond gap_high
        ({"loss_path": SILENT, "method": "combine"}, 0.0),  # scores, and no hint for that loss
    ],
    ids=["geometric", "epochs", "opsm", "opsm-kl", "band", "plugin"],
)
def test_a_batch_without_gradient_takes_no_step(
    trainer: Make, draw: Draw, tmp_path: Path, further: dict[str, object], off: float
) -> None:
    """After a step that left momentum behind: weights and the line's count stay, and turns know why."""
    if "loss_path" in further:
        (tmp_path / "loss.py").write_text(str(further["loss_path"]))
        further = further | {"loss_path": str(tmp_path / "loss.py")}
    made = trainer(**{"method": "binary", "learning_rate": 1e-3} | further)
    hint = {"hinted_prompts": (np.arange(3, dtype=np.int32),)}
    assert made.step(draw(made, 3, 4, reward=-1.0, **hint), str(tmp_path / "0")).folder
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    batch = moved(made, draw(made, 4, 4, reward=-1.0, hinted_prompts=()), [off] * 4)
    result = made.step(batch, str(tmp_path / "1"))
    assert result.folder is None
    assert result.dropped == {s.turn: ALL_MASKED for s in batch}
    assert all(p.equal(before[name]) for name, p in made.model.named_parameters())
    again = made.step(draw(made, 3, 4, reward=-1.0, **hint), str(tmp_path / "2"))
    assert again.metrics["step"] == 2


def in_group(
    s: Sample, rollout: str, step: int, outcome: float, rewards: tuple[float, ...]
) -> Sample:
    episode = EpisodeStep(group="t", episode=rollout, step=step, reward=outcome, rewards=rewards)
    return replace(s, reward=None, episode=episode)


def test_a_step_on_groups(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """Two rollouts of a task, one of two steps; a lone one, and a reply that belongs to no task."""
    made = trainer("groups", kl_coef=0.0, max_step_kl=1e9, learning_rate=1e-3)
    first, again, second, lone, chat = draw(made, 9, 5)
    batch = [
        in_group(first, "good", 0, 1.0, (1.0, -1.0)),
        in_group(again, "good", 1, 1.0, (1.0, -1.0)),
        in_group(second, "bad", 0, -1.0, (1.0, -1.0)),
        in_group(lone, "lone", 0, 1.0, (1.0,)),
        replace(chat, reward=1.0),
    ]
    before = [
        float(t[s.mask].sum())
        for s, t in zip(batch, made.logprobs([row_of(s) for s in batch]), strict=True)
    ]
    made.load(folder=None, method_state={"kept": 7})
    result = made.step(batch, str(tmp_path / "out"))
    after = [
        float(t[s.mask].sum())
        for s, t in zip(batch, made.logprobs([row_of(s) for s in batch]), strict=True)
    ]
    assert sum(after[:2]) > sum(before[:2])
    assert after[2] < before[2]
    assert result.dropped == {
        lone.turn: Reason(
            ReasonCode.EQUAL_REWARDS, "its group gives no signal: all its rewards are equal"
        ),
        chat.turn: Reason(ReasonCode.NO_SIGNAL, "no score and no hint that the method can use"),
    }
    assert result.memory["kept"] == 7
    metrics = result.metrics
    assert (metrics["turns"], metrics["reward/mean"], metrics["reward/std"]) == (3, 0.0, 1.0)
    assert metrics["loss/groups"] == pytest.approx(0, abs=1.0)
    assert {"masked/gap", "clipped/groups", "capped/groups"} <= metrics.keys()
    assert (metrics["groups/rollouts"], metrics["groups/silent"]) == (3, 1)


def test_groups_with_equal_rewards_take_no_step(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer("groups")
    batch = [in_group(s, f"{n}", 0, 1.0, (1.0, 1.0)) for n, s in enumerate(draw(made, 1, 4))]
    result = made.step(batch, str(tmp_path / "out"))
    assert result.folder is None
    assert len(result.dropped) == 4
    assert not list(tmp_path.iterdir())


def test_stale_turns_are_counted_by_their_code() -> None:
    stale = Reason(ReasonCode.TOO_STALE, "in other words")
    silent = Reason(ReasonCode.NO_SIGNAL, "too stale: it says")
    assert stale_turns({"a": stale, "b": silent}) == {"a"}
