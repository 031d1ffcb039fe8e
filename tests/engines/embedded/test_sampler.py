"""Draws against distributions computed in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openclaw_rl.engines.embedded.sampler import Sampler, SamplingState, invert_cdf
from openclaw_rl.types import Sampling

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -30.0])
N = 20_000


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max())
    return e / e.sum()


def frequencies(sampling: Sampling, n: int = N) -> np.ndarray:
    """How often each id is drawn in `n` draws of one row."""
    draw = SamplingState.from_sampling(sampling)
    if not draw.is_shaped:  # a thousand rows at a time that share one generator
        sampler = Sampler([draw] * 1000, CPU)
        ids = [i for _ in range(n // 1000) for i in sampler(LOGITS.expand(1000, -1))[0]]
    else:
        sampler = Sampler([draw] * 50, CPU)
        ids = [i for _ in range(n // 1000) for i in sampler(LOGITS.expand(50, -1))[0]]
    return np.bincount(ids, minlength=len(LOGITS)) / len(ids)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_plain_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    expected = softmax(LOGITS.double().numpy() / temperature)
    np.testing.assert_allclose(
        frequencies(Sampling(temperature=temperature, seed=1)), expected, atol=0.015
    )


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.7}, 2),
        ({"top_p": 0.5}, 1),
        ({"min_p": 0.3}, 2),
        ({"top_k": 4, "top_p": 0.9}, 3),
    ],
)
def test_cuts_keep_the_likeliest_and_their_proportions(shape: dict[str, float], kept: int) -> None:
    probs = softmax(LOGITS.double().numpy())
    expected = np.where(np.arange(len(probs)) < kept, probs, 0)
    got = frequencies(Sampling(seed=2, **shape))
    assert np.all(got[kept:] == 0)
    np.testing.assert_allclose(got, expected / expected.sum(), atol=0.05)


def test_greedy_takes_the_best_and_reports_the_plain_softmax() -> None:
    ids, logprobs, _ = Sampler([SamplingState.from_sampling(Sampling(temperature=0.0))], CPU)(
        LOGITS[None]
    )
    assert ids == [0]
    assert logprobs[0] == pytest.approx(float(LOGITS.log_softmax(-1)[0]))


def test_reported_logprobs_ignore_cuts_penalties_and_biases() -> None:
    sampling = Sampling(temperature=0.5, top_k=1, presence_penalty=1, logit_bias={3: 50.0}, seed=0)
    ids, logprobs, _ = Sampler([SamplingState.from_sampling(sampling)], CPU)(LOGITS[None])
    assert ids == [3]
    assert logprobs[0] == pytest.approx(float((LOGITS / 0.5).log_softmax(-1)[3]))


def test_penalties_count_sampled_tokens() -> None:
    presence = Sampler(
        [SamplingState.from_sampling(Sampling(temperature=0.0, presence_penalty=1.2))], CPU
    )
    assert [presence(LOGITS[None])[0][0] for _ in range(5)] == [
        0,
        1,
        0,
        0,
        0,
    ]  # 2 - 1.2 beats 0.5 from then on
    frequency = Sampler(
        [SamplingState.from_sampling(Sampling(temperature=0.0, frequency_penalty=1.2))], CPU
    )
    assert [frequency(LOGITS[None])[0][0] for _ in range(5)] == [0, 1, 0, 2, 3]


def test_no_stop_token_is_sampled_before_min_tokens() -> None:
    state = SamplingState.from_sampling(Sampling(temperature=0.0, min_tokens=2), stop=(0,))
    sampler = Sampler([state], CPU)
    assert [sampler(LOGITS[None])[0][0] for _ in range(4)] == [1, 1, 0, 0]  # 0 is the likeliest
    assert (
        str(Sampling(min_tokens=2).untrainable_reason())
        == "min_tokens 2 cuts the distribution; 0 is needed"
    )


def test_a_bias_bans_an_id() -> None:
    assert frequencies(Sampling(logit_bias={0: -100.0, 99: 5.0}, seed=3))[0] == 0


def test_samples_of_a_row_do_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    steps = torch.randn(30, 1, 64)

    def run(company: int) -> list[int]:
        others = [
            SamplingState.from_sampling(Sampling(temperature=0.5 + i, top_k=i))
            for i in range(company)
        ]
        sampler = Sampler(
            [*others, SamplingState.from_sampling(Sampling(seed=11, temperature=0.9))], CPU
        )
        return [sampler(torch.cat([torch.randn(company, 64), row]))[0][-1] for row in steps]

    assert run(0) == run(3)


def test_no_id_of_probability_zero_is_ever_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.4999999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert invert_cdf(probs, uniform).tolist() == [1, 1, 3, 3]


def test_alternatives_are_the_likeliest_in_order() -> None:
    draws = [SamplingState.from_sampling(Sampling(seed=0), top) for top in (0, 2, 9)]
    _, _, tops = Sampler(draws, CPU)(LOGITS.expand(3, -1))
    assert tops is not None
    assert [[i for i, _ in row] for row in tops] == [[], [0, 1], [0, 1, 2, 3, 4, 5]]
    assert tops[1][0][1] == pytest.approx(float(LOGITS.log_softmax(-1)[0]))
