"""The methods against the independent statement of decision 8, on random batches."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import attrgetter
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.methods.baseline import MAX_AGENTS, ScoreBaseline
from openclaw_rl.methods.binary import BinaryMethod
from openclaw_rl.methods.combine import CombinedMethod
from openclaw_rl.methods.opd import OpdMethod
from openclaw_rl.methods.registry import METHODS, make_method
from openclaw_rl.methods.types import BatchLogprobs, Sample
from openclaw_rl.settings.load import train_settings

DECAY, SHRINK, C = 0.95, 8.0, 1.0


def sample(
    rng: np.random.Generator, n: int, *, reward: float | None, hints: int = 0, agent: str = "a"
) -> Sample:
    r = int(rng.integers(1, 20))
    mask = rng.random(r) < 0.8
    mask[rng.integers(r)] = True
    prompt = rng.integers(0, 64, int(rng.integers(1, 9))).astype(np.int32)
    return Sample(
        turn=f"turn-{n}",
        agent=agent,
        prompt_ids=prompt,
        response_ids=rng.integers(0, 64, r).astype(np.int32),
        logprobs=-rng.exponential(2.0, r).astype(np.float32),
        mask=mask,
        temperature=float(rng.uniform(0.3, 2.0)),
        version=0,
        reward=reward,
        hinted_prompts=tuple(prompt for _ in range(hints)),
    )


def scores(
    rng: np.random.Generator, samples: list[Sample]
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    def draw(s: Sample) -> np.ndarray:
        return -rng.exponential(3.0, len(s.mask)).astype(np.float32)

    return [draw(s) for s in samples], [[draw(s) for _ in s.hinted_prompts] for s in samples]


def evidence(
    samples: list[Sample], student: list[np.ndarray], teachers: list[list[np.ndarray]]
) -> BatchLogprobs:
    return BatchLogprobs(samples=samples, student_logprobs=student, teacher_logprobs=teachers)


def batch(seed: int) -> tuple[np.random.Generator, list[Sample]]:
    rng = np.random.default_rng(seed)
    kinds = [
        sample(
            rng,
            n,
            reward=rng.choice([1.0, -1.0, None]),
            hints=int(rng.integers(0, 4)),
            agent=str(rng.choice(["a", "b"])),
        )
        for n in range(int(rng.integers(1, 9)))
    ]
    return rng, kinds


def as_reference(memory: dict) -> dict:
    kept = memory.get("baseline", {})
    out = {("agent", name): tuple(pair) for name, pair in kept.get("agents", {}).items()}
    return out | ({"everyone": tuple(kept["all"])} if "all" in kept else {})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_binary_matches_the_reference(reference: ModuleType, seed: int) -> None:
    rng, samples = batch(seed)
    samples = [replace(s, weight=float(rng.choice([1.0, 0.5, 0.2]))) for s in samples]
    method = BinaryMethod(decay=DECAY, shrink=SHRINK)
    memory: dict = {}
    expected: dict = {}
    for _ in range(3):  # the baseline of one batch is what the batches before it left behind
        (term,) = method.loss_terms(evidence(samples, *scores(rng, samples)), memory)
        for s, advantages, mask in zip(samples, term.advantages, term.masks, strict=True):
            if s.reward is None:
                assert not mask.any()
            else:
                b = reference.baselines(expected, s.agent, SHRINK)
                np.testing.assert_allclose(advantages, s.weight * (s.reward - b), atol=1e-6)
                np.testing.assert_array_equal(mask, s.mask)
        verdicts = [(s.agent, s.reward, s.weight) for s in samples if s.reward is not None]
        memory = json.loads(
            json.dumps(method.update_state(samples, memory))
        )  # it travels as JSON in the policy row
        expected = reference.baselines_after(expected, verdicts, DECAY)
        for key, (value, n) in as_reference(memory).items():
            assert (pytest.approx(value), pytest.approx(n)) == (expected.get(key, (0.0, 0)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_opd_matches_the_reference(reference: ModuleType, seed: int) -> None:
    rng, samples = batch(seed)
    student, teachers = scores(rng, samples)
    (term,) = OpdMethod(clip=C).loss_terms(evidence(samples, student, teachers), {})
    for i, s in enumerate(samples):
        if not teachers[i]:
            assert not term.masks[i].any()
            continue
        np.testing.assert_array_equal(term.masks[i], s.mask)
        for t in range(len(s.mask)):
            expected = reference.opd_advantage(
                float(student[i][t]), [float(x[t]) for x in teachers[i]], C
            )
            assert term.advantages[i][t] == pytest.approx(expected, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_combine_returns_the_terms_of_both_methods(seed: int) -> None:
    rng, samples = batch(seed)
    student, teachers = scores(rng, samples)
    binary, opd = BinaryMethod(decay=DECAY, shrink=SHRINK), OpdMethod(clip=C)
    both = CombinedMethod(binary=binary, opd=opd, w_binary=0.5, w_opd=2.0)
    alone = [
        *binary.loss_terms(evidence(samples, student, teachers), {}),
        *opd.loss_terms(evidence(samples, student, teachers), {}),
    ]
    for term, single, weight in zip(
        both.loss_terms(evidence(samples, student, teachers), {}), alone, (0.5, 2.0), strict=True
    ):
        assert (term.name, term.weight, term.sample_count) == (
            single.name,
            weight,
            single.sample_count,
        )
        for a, b in zip(
            (*term.advantages, *term.masks), (*single.advantages, *single.masks), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    assert both.update_state(samples, {}) == binary.update_state(samples, {})


def test_a_term_counts_only_its_own_samples() -> None:
    rng = np.random.default_rng(0)
    samples = [
        sample(rng, 0, reward=1.0),
        sample(rng, 1, reward=None, hints=1),
        sample(rng, 2, reward=-1.0, hints=1),
        sample(rng, 3, reward=None),
    ]
    terms = make_method(train_settings({"method": "combine"})).loss_terms(
        evidence(samples, *scores(rng, samples)), {}
    )
    assert {t.name: t.sample_count for t in terms} == {"binary": 2, "opd": 2}


def test_a_weight_of_zero_removes_the_signal() -> None:
    method = make_method(train_settings({"method": "combine", "loss.w_opd": 0.0}))
    assert (method.uses_reward, method.uses_hints) == (True, False)
    rng = np.random.default_rng(0)
    samples = [sample(rng, 0, reward=1.0, hints=1)]
    assert [t.name for t in method.loss_terms(evidence(samples, *scores(rng, samples)), {})] == [
        "binary"
    ]


def test_equal_rewards_keep_a_signal() -> None:
    """Four likes in a row: a division by the batch's standard deviation would be 0/0, its mean would say nothing."""
    rng = np.random.default_rng(0)
    samples = [sample(rng, n, reward=1.0) for n in range(4)]
    (term,) = BinaryMethod().loss_terms(evidence(samples, *scores(rng, samples)), {})
    assert all((a == 1.0).all() for a in term.advantages)


def test_the_baseline_of_a_new_agent_is_shrunk_to_that_of_all() -> None:
    memory = ScoreBaseline({}, decay=0.5, shrink=SHRINK).updated_state([("old", 1.0, 1.0)] * 50)
    baseline = ScoreBaseline(memory, decay=0.5, shrink=SHRINK)
    assert baseline.read("new") == pytest.approx(1.0)
    after = ScoreBaseline(baseline.updated_state([("new", -1.0, 1.0)]), decay=0.5, shrink=SHRINK)
    assert after.read("new") == pytest.approx(1 / 9 * -0.5 + 8 / 9 * 0.0, abs=1e-6)
    assert baseline.read("new") == pytest.approx(1.0), "a reader is not moved by an update"


def test_the_baseline_follows_the_mean_score() -> None:
    rng = np.random.default_rng(1)
    memory: dict = {}
    for _ in range(100):
        memory = ScoreBaseline(memory, decay=DECAY, shrink=SHRINK).updated_state(
            [("a", float(rng.choice([1, 1, 1, -1])), 1.0)]
        )
    assert ScoreBaseline(memory, decay=DECAY, shrink=SHRINK).read("a") == pytest.approx(
        0.5, abs=0.35
    )


def test_the_baseline_drops_the_agents_judged_longest_ago() -> None:
    memory = ScoreBaseline({}, decay=DECAY, shrink=SHRINK).updated_state(
        [(f"agent-{n}", 1.0, 1.0) for n in range(MAX_AGENTS)]
    )
    newest = [("agent-0", 1.0, 1.0), ("newcomer", 1.0, 1.0)]
    memory = ScoreBaseline(memory, decay=DECAY, shrink=SHRINK).updated_state(newest)
    agents = memory["baseline"]["agents"]
    assert len(agents) == MAX_AGENTS
    assert "agent-0" in agents
    assert "agent-1" not in agents


def test_unknown_method_state_is_kept() -> None:
    rng = np.random.default_rng(0)
    method = make_method(train_settings({"method": "combine"}))
    assert (
        method.update_state([sample(rng, 0, reward=1.0)], {"reply_tokens": 7.0})["reply_tokens"]
        == 7.0
    )


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.5, float("nan")])
def test_a_weight_outside_of_0_to_1_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"turn-0: expected a weight in \(0, 1\], got"):
        replace(sample(np.random.default_rng(0), 0, reward=1.0), weight=weight)


def test_a_reward_other_than_1_or_minus_1_is_refused() -> None:
    rng = np.random.default_rng(0)
    samples = [sample(rng, 0, reward=0.5)]
    with pytest.raises(ValueError, match=r"turn-0: expected a reward of \+1, -1 or none, got 0.5"):
        BinaryMethod().loss_terms(evidence(samples, *scores(rng, samples)), {})


def test_different_lengths_are_refused() -> None:
    rng = np.random.default_rng(0)
    samples = [sample(rng, 5, reward=None, hints=1)]
    student, teachers = scores(rng, samples)
    r = len(samples[0].mask)
    with pytest.raises(
        ValueError, match=rf"turn-5: expected {r} log-probabilities .* got \[{r}, {r + 1}\]"
    ):
        OpdMethod().loss_terms(evidence(samples, student, [[np.append(teachers[0][0], 0.0)]]), {})


def test_the_registry_matches_the_settings() -> None:
    for name, spec in METHODS.items():
        train = train_settings({"method": name})
        assert (spec.name, train.method) == (name, name)
        method = make_method(train)
        assert method.uses_reward or method.uses_hints or method.uses_episodes
        assert all(
            attrgetter(key.removeprefix("train."))(train) is not None for key in spec.own_settings
        )
    with pytest.raises(ValueError, match="'binary', 'opd', 'combine', 'sdpo', 'sdft' or 'groups'"):
        train_settings({"method": "grpo"})
