"""Credit of groups against its independent statement, on random groups of which a part is in the batch."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.group_relative import GroupRelativeMethod, GroupScale
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import BatchLogprobs, PolicyGradientTerm, Sample
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import from_flat, train_settings
from openclaw_rl.types import EpisodeStep


def sample(n: int, episode: EpisodeStep | None, tokens: int = 3) -> Sample:
    mask = np.ones(tokens, bool)
    mask[n % tokens] = tokens == 1
    return Sample(
        turn=f"turn-{n}", agent="a", prompt_ids=np.arange(4, dtype=np.int32),
        response_ids=np.arange(tokens, dtype=np.int32), logprobs=np.full(tokens, -1.0, np.float32), mask=mask,
        temperature=1.0, version=0, reward=None, episode=episode,
    )  # fmt: skip


Played = tuple[str, str, float, list[float | None]]  # task, episode, outcome, step rewards


def steps_of(played: list[Played]) -> list[EpisodeStep]:
    """Each step with the rewards of its group, as the store gives them. A step of None is on no chain."""
    return [
        EpisodeStep(
            group=task,
            episode=name,
            step=k,
            reward=outcome,
            step_reward=reward,
            rewards=tuple(o for t, _, o, _ in played if t == task),
            step_rewards=tuple(
                r[k] for t, _, _, r in played if t == task and len(r) > k and r[k] is not None
            ),
        )
        for task, name, outcome, rewards in played
        for k, reward in enumerate(rewards)
    ]


def term_of(method: GroupRelativeMethod, episodes: list[EpisodeStep | None]) -> PolicyGradientTerm:
    samples = [sample(n, e) for n, e in enumerate(episodes)]
    student = [s.logprobs for s in samples]
    (term,) = method.loss_terms(
        BatchLogprobs(
            samples=samples, student_logprobs=student, teacher_logprobs=[() for _ in samples]
        ),
        {},
    )
    return term


def advantages(
    method: GroupRelativeMethod, episodes: list[EpisodeStep | None]
) -> list[float | None]:
    """One a sample; None where it is not in the term."""
    term = term_of(method, episodes)
    assert all(len(set(a.tolist())) == 1 for a in term.advantages), "the same for every token"
    return [
        float(a[0]) if m.any() else None for a, m in zip(term.advantages, term.masks, strict=True)
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[Played]:
    """Tasks of one to five episodes, of one to four steps; outcomes and rewards that are often equal or missing."""
    values = st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0])
    return [
        (
            f"task-{task}",
            f"{task}.{name}",
            draw(values),
            draw(st.lists(st.none() | values, min_size=1, max_size=4)),
        )
        for task in range(draw(st.integers(1, 4)))
        for name in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=200, deadline=None)
@given(
    batches(),
    st.sampled_from([None, 0.1, 0.7]),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([0.3, 1.0]),
    st.booleans(),
    st.randoms(),
)
def test_credit_matches_the_reference(
    reference: ModuleType,
    played: list[Played],
    floor: float | None,
    w_step: float,
    w_outcome: float,
    signed: bool,
    random: Random,
) -> None:
    """Whatever part of the groups is in the batch."""
    scale: GroupScale = "none" if floor is None else "std"
    method = GroupRelativeMethod(
        scale=scale,
        floor=floor or 0.1,
        w_outcome=w_outcome,
        w_step=w_step,
        outcome="signed" if signed else "as_is",
    )
    steps = steps_of(played)
    stated = [
        {
            "task": e.group,
            "rollout": e.episode,
            "step": e.step,
            "outcome": e.reward,
            "reward": e.step_reward,
        }
        for e in steps
    ]
    expected = reference.group_advantages(
        stated, floor=floor, w_outcome=w_outcome, w_step=w_step, signed=signed
    )
    chosen = random.sample(range(len(steps)), random.randint(1, len(steps)))
    found = advantages(method, [steps[i] for i in chosen])
    for i, value in zip(chosen, found, strict=True):
        assert (value is None) == (expected[i] is None)
        assert value is None or value == pytest.approx(expected[i], abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_advantages_of_a_group_sum_to_zero(played: list[Played]) -> None:
    """Over episodes of a task that all take one step, the advantages cancel: praise for one is blame for the rest."""
    single = steps_of([(task, name, outcome, [None]) for task, name, outcome, _ in played])
    found = [a for a in advantages(GroupRelativeMethod(), list(single)) if a is not None]
    assert sum(found) == pytest.approx(0, abs=1e-5)


def test_a_rollout_counts_once_however_many_steps_it_has() -> None:
    steps = steps_of([("t", "long", 1.0, [None] * 9), ("t", "short", 0.0, [None])])
    assert advantages(GroupRelativeMethod(), list(steps)) == [0.5] * 9 + [-0.5]


def test_step_rewards_are_compared_at_the_same_step() -> None:
    steps = steps_of([("t", "1", 1.0, [1.0, -1.0, 1.0]), ("t", "2", 1.0, [0.0, -1.0])])
    assert advantages(GroupRelativeMethod(), list(steps)) == [0.5, None, None, -0.5, None]


@pytest.mark.parametrize("outcomes", [[1.0], [1.0, 1.0, 1.0], [0.1 + 0.2, 0.3]])
def test_samples_without_advantage_are_in_no_term_or_denominator(outcomes: list[float]) -> None:
    silent = steps_of([("silent", f"s{n}", o, [None, None]) for n, o in enumerate(outcomes)])
    telling = steps_of([("telling", f"t{n}", float(n), [None]) for n in range(2)])
    term = term_of(GroupRelativeMethod(), [*silent, *telling, None])
    assert term.sample_count == len(telling)
    assert [bool(m.any()) for m in term.masks] == [False] * len(silent) + [True, True, False]
    assert term.metrics == {"groups/rollouts": len(outcomes) + 2, "groups/silent": len(outcomes)}
    assert not term_of(GroupRelativeMethod(), list(silent)).has_gradient
    assert GroupRelativeMethod().no_credit_reason(silent[0]).code is ReasonCode.EQUAL_REWARDS


def test_a_turn_on_a_branch_has_the_outcome_only_with_branches_all() -> None:
    beside = [
        replace(e, step=None, step_reward=None)
        for e in steps_of([("t", f"{n}", n, [0.0]) for n in (0.0, 1.0)])
    ]
    assert advantages(GroupRelativeMethod(), list(beside)) == [None, None]
    assert "a branch that the end" in str(GroupRelativeMethod().no_credit_reason(beside[0]))
    assert advantages(GroupRelativeMethod(branches="all"), list(beside)) == [-0.5, 0.5]


def test_dividing_by_the_deviation_has_a_floor() -> None:
    close = steps_of([("t", f"{n}", 1.0 + n * 1e-6, [None]) for n in range(2)])
    assert (
        max(
            abs(a or 0)
            for a in advantages(GroupRelativeMethod(scale="std", floor=0.1), list(close))
        )
        < 1e-5
    )
    apart = steps_of([("t", f"{n}", float(n), [None]) for n in range(2)])
    assert advantages(GroupRelativeMethod(scale="std", floor=0.1), list(apart)) == [-1.0, 1.0]
    assert advantages(GroupRelativeMethod(scale="std", floor=2.0), list(apart)) == [-0.25, 0.25]


@pytest.mark.parametrize(
    "wrong", [{"reward": 2.0}, {"rewards": (1.0, float("nan"))}, {"step_reward": 0.5}]
)
def test_invalid_rewards_of_a_group_are_refused(wrong: dict[str, Any]) -> None:
    right = {"group": "t", "episode": "r", "step": 2, "reward": 1.0, "rewards": (1.0, 0.0)}
    with pytest.raises(ValueError, match="episode r: expected finite rewards with"):
        EpisodeStep(**(right | wrong))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss.group_scale": "std", "loss.group_floor": 2.0}, [-0.25, 0.25]),
        ({}, [-0.5, 0.5]),
        ({"loss.w_outcome": 3.0}, [-1.5, 1.5]),
        ({"loss.outcome": "signed"}, [-1.0, 1.0]),
        ({"loss.w_outcome": 0.0, "loss.w_step": 2.0}, [1.0, -1.0]),
    ],
)
def test_the_settings_reach_the_method(given: dict[str, Any], expected: list[float]) -> None:
    rewards: list[float | None] = [1.0] if "loss.w_step" in given else [None]
    apart = steps_of(
        [("t", "0", 0.0, rewards), ("t", "1", 1.0, [0.0] if rewards == [1.0] else [None])]
    )
    made = make_method(train_settings({"method": "groups"} | given))
    assert isinstance(made, GroupRelativeMethod)
    assert advantages(made, list(apart)) == expected


def test_two_weights_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.loss.w_outcome and train.loss.w_step are 0"):
        from_flat({"train.method": "groups", "train.loss.w_outcome": 0, "train.loss.w_step": 0})
