"""Credit by token is the sum of weight times advantage over the terms of a step."""

from __future__ import annotations

import numpy as np

from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.token_credit import credit_by_token
from openclaw_rl.methods.types import BatchLogprobs, DistillTerm, Sample, TopKLogprobs
from openclaw_rl.settings.load import train_settings

MEMORY = {"baseline": {"all": [0.25, 8], "agents": {"a": [0.5, 8]}}}


def sample(turn: str, reward: float | None, *, hints: int = 0) -> Sample:
    return Sample(
        turn=turn,
        agent="a",
        prompt_ids=np.array([1], np.int32),
        response_ids=np.array([2, 3, 4], np.int32),
        logprobs=np.zeros(3, np.float32),
        mask=np.array([True, True, False]),
        temperature=1.0,
        version=0,
        reward=reward,
        hinted_prompts=(np.array([1, 1], np.int32),) * hints,
    )


def test_credit_of_combine_is_the_sum_of_both_terms() -> None:
    method = make_method(
        train_settings({"method": "combine", "loss.w_binary": 2.0, "loss.w_opd": 0.5})
    )
    samples = [
        sample("both", -1.0, hints=1),
        sample("score", 1.0),
        sample("hint", None, hints=1),
        sample("none", None),
    ]
    student = np.array([-1.0, -2.0, -3.0], np.float32)
    teacher = np.array([-0.5, -9.0, -1.0], np.float32)
    evidence = BatchLogprobs(
        samples=samples,
        student_logprobs=[student] * 4,
        teacher_logprobs=[[teacher], [], [teacher], []],
    )
    found = credit_by_token(method.loss_terms(evidence, MEMORY), evidence)
    baseline = 0.5 * 0.5 + 0.5 * 0.25  # eight verdicts, shrunk by eight
    opd = 0.5 * np.array([0.5, -1.0, 0.0])  # clipped to 1, and masked
    binary = 2.0 * np.array([1.0, 1.0, 0.0])
    assert found.keys() == {"both", "score", "hint"}
    np.testing.assert_allclose(found["both"], (-1.0 - baseline) * binary + opd, atol=1e-3)
    np.testing.assert_allclose(found["score"], (1.0 - baseline) * binary, atol=1e-3)
    np.testing.assert_allclose(found["hint"], opd, atol=1e-3)
    assert {credit.dtype for credit in found.values()} == {np.dtype(np.float16)}


def test_credit_of_a_target_distribution_is_that_of_the_sampled_token() -> None:
    samples = [sample("hint", None, hints=1)]
    student, teacher = (
        np.array([-1.0, -2.0, -3.0], np.float32),
        np.array([-0.5, -1e6, -1.0], np.float32),
    )
    evidence = BatchLogprobs(
        samples=samples, student_logprobs=[student], teacher_logprobs=[[teacher]]
    )
    target = TopKLogprobs(ids=np.zeros((3, 1), np.int32), logprobs=np.zeros((3, 1)))
    masks = (samples[0].mask,)
    term = DistillTerm(
        name="opd",
        weight=2.0,
        masks=masks,
        targets=(target,),
        divergence="reverse",
        ratio_clip=2.0,
        has_gradient=True,
    )
    found = credit_by_token([term], evidence)["hint"]
    np.testing.assert_array_equal(found, np.array([1.0, -65504.0, 0.0], np.float16))
