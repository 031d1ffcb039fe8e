"""Credit of groups against its independent statement, on random batches; and what incomplete groups come to."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.group_relative import GroupRelativeMethod
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import BatchLogprobs, EpisodeStep, PolicyGradientTerm, Sample
from openclaw_rl.settings.load import from_flat, train_settings


def sample(n: int, episode: EpisodeStep | None, tokens: int = 3) -> Sample:
    mask = np.ones(tokens, bool)
    mask[n % tokens] = tokens == 1
    return Sample(
        turn=f"turn-{n}", agent="a", prompt_ids=np.arange(4, dtype=np.int32),
        response_ids=np.arange(tokens, dtype=np.int32), logprobs=np.full(tokens, -1.0, np.float32), mask=mask,
        temperature=1.0, version=0, reward=None, episode=episode,
    )  # fmt: skip


def rollout(task: str, name: str, outcome: float | None, rewards: list[float | None]) -> list[EpisodeStep]:
    return [
        EpisodeStep(group=task, episode=name, step=k, outcome=outcome, step_reward=reward)
        for k, reward in enumerate(rewards)
    ]


def term_of(method: GroupRelativeMethod, episodes: list[EpisodeStep | None]) -> PolicyGradientTerm:
    samples = [sample(n, e) for n, e in enumerate(episodes)]
    student = [s.logprobs for s in samples]
    (term,) = method.loss_terms(
        BatchLogprobs(samples=samples, student_logprobs=student, teacher_logprobs=[() for _ in samples]), {}
    )
    return term


def advantages(method: GroupRelativeMethod, episodes: list[EpisodeStep | None]) -> list[float | None]:
    """One a sample; None where it is not in the term."""
    term = term_of(method, episodes)
    assert all(len(set(a.tolist())) == 1 for a in term.advantages), "the same for every token"
    return [float(a[0]) if m.any() else None for a, m in zip(term.advantages, term.masks, strict=True)]


@st.composite
def batches(draw: st.DrawFn) -> list[EpisodeStep | None]:
    """Tasks of one to five rollouts, of one to four steps; outcomes and rewards that are often equal or missing."""
    values = st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0])
    episodes: list[EpisodeStep | None] = [None] * draw(st.integers(0, 2))
    for task in range(draw(st.integers(1, 4))):
        for name in range(draw(st.integers(1, 5))):
            outcome = draw(st.none() | values)
            rewards = draw(st.lists(st.none() | values, min_size=1, max_size=4))
            episodes += rollout(f"task-{task}", f"rollout-{name}", outcome, rewards)
    return draw(st.permutations(episodes))


@settings(max_examples=200, deadline=None)
@given(batches(), st.sampled_from([None, 0.1, 0.7]))
def test_credit_is_the_reference(
    reference: ModuleType, episodes: list[EpisodeStep | None], floor: float | None
) -> None:
    method = GroupRelativeMethod() if floor is None else GroupRelativeMethod(scale="std", floor=floor)
    found = advantages(method, episodes)
    stated = [
        {"task": e.group, "rollout": e.episode, "step": e.step, "outcome": e.outcome, "reward": e.step_reward}
        for e in episodes
        if e is not None
    ]
    expected = iter(reference.group_advantages(stated, floor=floor))
    for e, value in zip(episodes, found, strict=True):
        want = None if e is None else next(expected)
        assert (value is None) == (want is None)
        assert value is None or value == pytest.approx(want, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_what_a_group_says_sums_to_nothing(episodes: list[EpisodeStep | None]) -> None:
    """Over rollouts of a task that all take one step, the advantages cancel: praise for one is blame for the rest."""
    single = [replace(e, step_reward=None) for e in episodes if e and e.step == 0]
    found = [a for a in advantages(GroupRelativeMethod(), list(single)) if a is not None]
    assert sum(found) == pytest.approx(0, abs=1e-5)


def test_a_rollout_counts_once_however_many_steps_it_has() -> None:
    long, short = rollout("t", "long", 1.0, [None] * 9), rollout("t", "short", 0.0, [None])
    assert advantages(GroupRelativeMethod(), [*long, *short]) == [0.5] * 9 + [-0.5]


def test_step_rewards_are_compared_at_the_same_step() -> None:
    first, second = rollout("t", "1", 1.0, [1.0, -1.0, 1.0]), rollout("t", "2", 1.0, [0.0, -1.0])
    assert advantages(GroupRelativeMethod(), [*first, *second]) == [0.5, None, None, -0.5, None]


@pytest.mark.parametrize("outcomes", [[1.0], [1.0, 1.0, 1.0], [0.1 + 0.2, 0.3], [0.0, None], [None, None]])
def test_what_says_nothing_is_in_no_term_and_no_denominator(outcomes: list[float | None]) -> None:
    silent = [e for n, o in enumerate(outcomes) for e in rollout("silent", f"{n}", o, [None, None])]
    telling = [e for n in range(2) for e in rollout("telling", f"{n}", float(n), [None])]
    term = term_of(GroupRelativeMethod(), [*silent, *telling, None])
    assert term.sample_count == len(telling)
    assert [bool(m.any()) for m in term.masks] == [False] * len(silent) + [True, True, False]
    known = sum(o is not None for o in outcomes)
    assert term.metrics == {"groups/rollouts": known + 2, "groups/silent": known}
    assert not term_of(GroupRelativeMethod(), list(silent)).has_gradient


def test_a_group_in_two_batches_is_two_groups() -> None:
    """The mean is that of the rollouts at hand; the last one left over says nothing."""
    whole = [e for n, o in enumerate([1.0, 0.0, 0.0]) for e in rollout("t", f"{n}", o, [None])]
    assert advantages(GroupRelativeMethod(), list(whole)) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert advantages(GroupRelativeMethod(), list(whole[:2])) == [0.5, -0.5]
    assert advantages(GroupRelativeMethod(), list(whole[2:])) == [None]


def test_dividing_by_the_deviation_has_a_floor() -> None:
    close = [e for n in range(2) for e in rollout("t", f"{n}", 1.0 + n * 1e-6, [None])]
    assert max(abs(a or 0) for a in advantages(GroupRelativeMethod(scale="std", floor=0.1), list(close))) < 1e-5
    apart = [e for n in range(2) for e in rollout("t", f"{n}", float(n), [None])]
    assert advantages(GroupRelativeMethod(scale="std", floor=0.1), list(apart)) == [-1.0, 1.0]
    assert advantages(GroupRelativeMethod(scale="std", floor=2.0), list(apart)) == [-0.25, 0.25]


def test_a_rollout_that_contradicts_itself_is_refused() -> None:
    first, second = rollout("t", "r", 1.0, [None])[0], rollout("t", "r", 0.0, [None, None])[1]
    with pytest.raises(ValueError, match="group t, episode r: expected one outcome at all its steps, got 1 and 0"):
        advantages(GroupRelativeMethod(), [first, second])
    with pytest.raises(ValueError, match="group t, episode r: expected step 0 once, got it twice"):
        advantages(GroupRelativeMethod(), [first, first])


@pytest.mark.parametrize("wrong", [{"outcome": float("nan")}, {"outcome": 1.0, "step_reward": float("inf")}])
def test_a_reward_is_a_number_or_not_known(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="group t, episode r, step 2: expected a finite"):
        EpisodeStep(group="t", episode="r", step=2, **wrong)


def test_the_settings_reach_it() -> None:
    apart: list[EpisodeStep | None] = [e for n in range(2) for e in rollout("t", f"{n}", float(n), [None])]
    made = make_method(train_settings({"method": "groups", "loss.group_scale": "std", "loss.group_floor": 2.0}))
    assert isinstance(made, GroupRelativeMethod)
    assert advantages(made, apart) == [-0.25, 0.25]
    plain = make_method(train_settings({"method": "groups"}))
    assert isinstance(plain, GroupRelativeMethod)
    assert advantages(plain, apart) == [-0.5, 0.5]


def test_conversations_have_no_groups() -> None:
    with pytest.raises(ConfigError, match=r"a conversation has one reply a turn.*Say combine"):
        from_flat({"train.method": "groups"})
