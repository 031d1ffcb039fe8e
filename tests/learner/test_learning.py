"""Where the three methods go when they are followed for a while, on policies small enough to know the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.loss.length_ema import LengthEma
from openclaw_rl.learner.loss.policy_loss import LossConfig, TermSlice, micro_batch_loss
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.binary import BinaryMethod
from openclaw_rl.methods.opd import OpdMethod
from openclaw_rl.methods.types import BatchLogprobs, CreditMethod, Sample

pytestmark = pytest.mark.system

BOUNDS = LossConfig(
    clip_low=0.8, clip_high=1.28, dual_clip=3.0, token_ratio_min=0.5, token_ratio_max=5.0
)
PROMPT = np.zeros(1, np.int32)


def reply(
    ids: Sequence[int], logp: np.ndarray, *, reward: float | None = None, hinted: bool = False
) -> Sample:
    return Sample(
        turn="t",
        agent="a",
        prompt_ids=PROMPT,
        response_ids=np.asarray(ids, np.int32),
        logprobs=logp.astype(np.float32),
        mask=np.ones(len(ids), bool),
        temperature=1.0,
        version=0,
        reward=reward,
        hinted_prompts=(PROMPT,) if hinted else (),
    )


def descend(
    theta: torch.Tensor,
    logp_K: torch.Tensor,
    method: CreditMethod,
    samples: list[Sample],
    teachers: list[list[np.ndarray]],
    memory: dict,
    *,
    rate: float,
    tokens: float,
) -> dict:
    """One step of plain gradient descent on a table of logits."""
    student = np.split(logp_K.detach().numpy(), np.cumsum([len(s.mask) for s in samples])[:-1])
    terms = [
        TermSlice(
            name=term.name,
            weight=term.weight,
            advantages_K=torch.from_numpy(np.concatenate(term.advantages)),
            mask_K=torch.from_numpy(np.concatenate(term.masks)),
            denominator=term.sample_count * tokens,
        )
        for term in method.loss_terms(
            BatchLogprobs(samples=samples, student_logprobs=student, teacher_logprobs=teachers),
            memory,
        )
    ]
    mu_K = torch.from_numpy(np.concatenate([s.logprobs for s in samples]))
    loss = micro_batch_loss(
        logp_K=logp_K,
        mu_K=mu_K,
        base_K=mu_K,
        terms=terms,
        kl_coef=0.0,
        kl_denominator=1.0,
        config=BOUNDS,
    )
    (gradient,) = torch.autograd.grad(loss.total, theta)
    with torch.no_grad():
        theta -= rate * gradient
    return method.update_state(samples, memory)


@pytest.mark.parametrize("better", [0, 1])
def test_binary_learns_the_better_of_two_tokens(better: int) -> None:
    """Liked 70% of the time against 30%, in batches of four."""
    rng = np.random.default_rng(better)
    theta, memory = torch.zeros(2, requires_grad=True), {}
    for _ in range(200):
        logp = torch.log_softmax(theta, 0)
        probabilities = logp.detach().exp().double().numpy()
        ids = rng.choice(2, size=4, p=probabilities / probabilities.sum())
        liked = rng.random(4) < np.where(ids == better, 0.7, 0.3)
        samples = [
            reply([i], logp.detach().numpy()[[i]], reward=1.0 if like else -1.0)
            for i, like in zip(ids, liked, strict=True)
        ]
        memory = descend(
            theta,
            logp[torch.from_numpy(ids)],
            BinaryMethod(),
            samples,
            [[]] * 4,
            memory,
            rate=0.6,
            tokens=1.0,
        )
    assert torch.softmax(theta, 0)[better] > 0.9


def test_opd_converges_to_the_teacher() -> None:
    """On four tokens, from far away (1.4 nats), with the teacher frozen."""
    rng = np.random.default_rng(0)
    teacher = np.log(np.array([0.55, 0.3, 0.1, 0.05]))
    theta = torch.tensor([-2.0, 0.0, 1.0, 1.0], requires_grad=True)

    def distance() -> float:
        logp = torch.log_softmax(theta, 0).detach().double().numpy()
        return float((np.exp(logp) * (logp - teacher)).sum())

    start = distance()
    for step in range(600):
        logp = torch.log_softmax(theta, 0)
        probabilities = logp.detach().exp().double().numpy()
        ids = rng.choice(4, size=16, p=probabilities / probabilities.sum())
        samples = [reply([i], logp.detach().numpy()[[i]], hinted=True) for i in ids]
        teachers = [[teacher[[i]].astype(np.float32)] for i in ids]
        rate = 0.5 / (1 + step / 40)
        descend(
            theta,
            logp[torch.from_numpy(ids)],
            OpdMethod(clip=1.0),
            samples,
            teachers,
            {},
            rate=rate,
            tokens=1.0,
        )
    assert start > 1.0
    assert distance() < 1e-3


def test_opd_of_the_local_trainer_converges_to_the_hinted_base(
    trainer: Callable[..., LocalTrainer], four: str, tmp_path: Path
) -> None:
    """A model with four tokens: under the plain prompt it ends up as the base speaks under the hinted one."""
    made = trainer(
        *("opd", four),
        learning_rate=2e-2,
        kl_coef=0.0,
        opd_clip=2.0,
        clip_grad=10.0,
        lora={"rank": 4},
        max_gap=9.0,
        max_step_kl=0.1,  # a wide region: the way is far, and the rest is the same
    )
    rng = np.random.default_rng(0)
    prompt, hinted = np.array([2, 0, 1], np.int32), np.array([2, 0, 1, 3, 3, 0, 1], np.int32)

    def distribution(ids: np.ndarray, *, base: bool) -> np.ndarray:
        rows = [
            TokenSequence(prompt_ids=ids, response_ids=np.array([v], np.int32), temperature=1.0)
            for v in range(4)
        ]
        return np.concatenate([x.numpy() for x in made.logprobs(rows, base=base)])

    teacher = distribution(hinted, base=True)

    def distance() -> float:
        logp = distribution(prompt, base=False)
        return float((np.exp(logp) * (logp - teacher)).sum())

    start = distance()
    for step in range(60):
        logp = distribution(prompt, base=False)
        probabilities = np.exp(logp.astype(np.float64))
        ids = rng.choice(4, size=64, p=probabilities / probabilities.sum())
        samples = [
            Sample(
                turn=f"{step}-{n}",
                agent="a",
                prompt_ids=prompt,
                response_ids=np.array([i], np.int32),
                logprobs=logp[[i]],
                mask=np.ones(1, bool),
                temperature=1.0,
                version=step,
                reward=None,
                hinted_prompts=(hinted,),
            )
            for n, i in enumerate(ids)
        ]
        made.step(samples, str(tmp_path / str(step)))
    assert start > 0.1
    assert distance() < 0.01
    np.testing.assert_allclose(distribution(hinted, base=True), teacher, atol=1e-6)


def follow_lengths(seed: int, *, per_batch_count: bool, batches: int = 200) -> float:
    """Tokens per reply at the end, of a policy that only chooses when to stop; a reply has 10 tokens at first.

    80% of the replies are liked, whatever their length; the baseline has not yet caught up (b = 0).
    """
    rng = np.random.default_rng(seed)
    theta = torch.tensor(np.log(1 / 9), requires_grad=True)  # of stopping: p = 0.1
    memory: dict = {}
    for _ in range(batches):
        both = torch.nn.functional.logsigmoid(torch.stack([-theta, theta]))
        lengths = rng.geometric(both[1].exp().item(), 4)
        ids = [np.r_[np.zeros(n - 1, np.int64), 1] for n in lengths]
        rewards = rng.choice([1.0, -1.0], 4, p=[0.8, 0.2])
        logp = both.detach().numpy()
        samples = [reply(i, logp[i], reward=r) for i, r in zip(ids, rewards, strict=True)]
        reply_tokens = LengthEma(memory, decay=0.99)
        tokens = (
            float(np.mean(lengths))
            if per_batch_count
            else reply_tokens.average_length(list(lengths))
        )
        logp_K = both[torch.from_numpy(np.concatenate(ids))]
        descend(theta, logp_K, BinaryMethod(), samples, [[]] * 4, {}, rate=0.2, tokens=tokens)
        memory = reply_tokens.updated_state([int(n) for n in lengths])
    return float(1 / torch.sigmoid(theta).detach())


def test_length_does_not_drift_when_the_reward_does_not_depend_on_it() -> None:
    """A slow average of reply tokens keeps the length; dividing by the batch's own count, as a control, shortens it."""
    ours = [follow_lengths(seed, per_batch_count=False) for seed in range(4)]
    control = [follow_lengths(seed, per_batch_count=True) for seed in range(4)]
    error = np.std(ours, ddof=1) / np.sqrt(len(ours))
    assert abs(np.mean(ours) - 10) < 3 * error + 0.5
    assert max(control) < 7.5
    assert min(ours) > max(control)
