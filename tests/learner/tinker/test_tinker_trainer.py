"""Steps at Tinker: the gradient of our formula, the trust region, exactly once, and the budget."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.learner.tinker.conftest import BATCH, SETTINGS, Make, make_sample, take_step
from tests.learner.tinker.training_sdk import TrainingSdk, base_logits, sequence_logprobs

from openclaw_rl.common.policy_digest import TINKER_FILE, digest_of_folder
from openclaw_rl.errors import ModelError, TrainerAbsent
from openclaw_rl.learner.loss.distillation import term_slices
from openclaw_rl.learner.loss.policy_loss import make_loss_config, micro_batch_loss
from openclaw_rl.learner.tinker.training_budget import USAGE_FILE, TrainingBudget
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import BatchLogprobs, Sample
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config, from_flat


def expected_gradient(config: Config, samples: list[Sample]) -> torch.Tensor:
    """The gradient of the local trainer's loss by the model's matrix: autograd through the whole loss."""
    delta = torch.zeros(16, 16, dtype=torch.float64, requires_grad=True)

    def logprobs(sample: Sample, prompt: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
        whole = [int(prompt[-1]), *sample.response_ids.tolist()]
        return sequence_logprobs(logits, whole[:-1], whole[1:])

    student = [logprobs(s, s.prompt_ids, base_logits() + delta) for s in samples]
    base = [logprobs(s, s.prompt_ids, base_logits()) for s in samples]
    evidence = BatchLogprobs(
        samples=samples,
        student_logprobs=[o.detach().numpy() for o in student],
        teacher_logprobs=[
            [logprobs(s, p, base_logits()).numpy() for p in s.hinted_prompts] for s in samples
        ],
    )
    terms = make_method(config.train).loss_terms(evidence, {})
    members = [i for i in range(len(samples)) if any(term.masks[i].any() for term in terms)]
    length_ema = sum(int(samples[i].mask.sum()) for i in members) / len(members)
    logp_K = torch.cat([student[i] for i in members])
    loss = micro_batch_loss(
        logp_K=logp_K,
        mu_K=torch.cat([torch.from_numpy(samples[i].logprobs).double() for i in members]),
        base_K=torch.cat([base[i] for i in members]),
        terms=term_slices(terms, members, logp_K.unsqueeze(-1), length_ema),
        kl_coef=config.train.loss.kl_coef,
        kl_denominator=len(members) * length_ema,
        config=make_loss_config(config.train),
        rows_K=torch.arange(len(members)).repeat_interleave(
            torch.tensor([len(student[i]) for i in members])
        ),
    )
    (gradient,) = torch.autograd.grad(loss.total, delta)
    return gradient


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("method", ["binary", "opd", "combine"])
def test_the_gradient_equals_that_of_the_local_loss(
    make: Make, sdk: TrainingSdk, tmp_path: Path, method: str, reduction: str
) -> None:
    """Samples with large gaps are in the batch: some of their tokens are clipped, others masked."""
    sdk.reduction = reduction
    samples = [*BATCH, make_sample(5, 1.0, gap=0.6, hints=1), make_sample(6, -1.0, gap=0.6)]
    settings = {
        "train.method": method,
        "tinker.reduction": reduction,
        "train.safety.max_turn_log_ratio": 9.0,
    }
    result = make(**settings).step(samples, str(tmp_path / "000001-a"))
    expected = expected_gradient(from_flat(SETTINGS | settings), samples)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(sdk.gradients[0], expected, rtol=1e-4, atol=1e-6)
    assert result.metrics["gradient/norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    assert {"loss/total", "kl", "kl/step", "gap"} <= result.metrics.keys()
    assert set(result.credit) == {s.turn for s in samples if s.turn not in result.dropped}


@pytest.mark.parametrize("surrogate", ["cispo", "gspo"])
def test_other_surrogates_have_their_gradient(
    make: Make, sdk: TrainingSdk, tmp_path: Path, surrogate: str
) -> None:
    settings = {
        "train.method": "combine",
        "train.loss.surrogate": surrogate,
        "train.loss.kl_coef": 1.0,
    }
    make(**settings).step(BATCH, str(tmp_path / "000001-a"))
    expected = expected_gradient(from_flat(SETTINGS | settings), BATCH)
    torch.testing.assert_close(sdk.gradients[0], expected, rtol=1e-4, atol=1e-6)


def test_another_process_continues_from_the_checkpoint_at_the_service(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    first = make()
    one = take_step(first, tmp_path / "000001-a")
    assert (one.digest, set(one.files)) == (
        digest_of_folder(str(one.folder)),
        {TINKER_FILE, "trainer.json"},
    )
    held = json.loads((tmp_path / "000001-a" / TINKER_FILE).read_text())
    assert held["sampler"] == "tinker://run/sampler_weights/openclaw-000001-a"
    first.load(folder=one.folder, method_state=one.memory)
    two = take_step(first, tmp_path / "000002-a")
    again = make()
    again.load(folder=one.folder, method_state=one.memory)
    repeated = take_step(again, tmp_path / "000002-b")
    assert repeated.metrics["step"] == two.metrics["step"] == 2
    assert repeated.memory == two.memory
    path = "tinker://run/weights/openclaw-000002-"
    torch.testing.assert_close(sdk.saved[f"{path}a"], sdk.saved[f"{path}b"], rtol=0, atol=0)


def test_a_step_starts_from_the_checkpoint_of_its_version(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    trainer = make()
    one = take_step(trainer, tmp_path / "000001-a")
    take_step(trainer, tmp_path / "000002-a")  # rejected: the loop loads the head again
    trainer.load(folder=one.folder, method_state=one.memory)
    take_step(trainer, tmp_path / "000002-b")
    assert sdk.restored[-1] == "tinker://run/weights/openclaw-000001-a"
    trainer.load(folder=None, method_state={})
    back = take_step(trainer, tmp_path / "000001-c")
    assert back.metrics["step"] == 1
    first, again = (sdk.saved[f"tinker://run/weights/openclaw-000001-{x}"][0] for x in "ac")
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_a_step_beyond_the_trust_region_is_halved(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    settings = {"train.optimizer.learning_rate": 0.5, "train.safety.max_step_kl": 1e6}
    free = take_step(make(**settings), tmp_path / "000001-free")
    bound = free.metrics["kl/step"] / 10
    settings["train.safety.max_step_kl"] = bound
    held = take_step(make(**settings), tmp_path / "000001-held")
    assert held.metrics["kl/step"] <= bound
    assert held.metrics["step/scale"] == sdk.steps[-1] / 0.5 < 1
    path = "tinker://run/weights/openclaw-000001-"
    whole, part = (sdk.saved[path + name][0] for name in ("free", "held"))
    torch.testing.assert_close(part, whole * held.metrics["step/scale"], rtol=1e-6, atol=1e-9)


def test_a_gradient_is_clipped_where_the_server_does_not(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    """Its norm counts for the steps after it, too: Adam divides by what it remembers of earlier gradients."""
    settings = {"train.optimizer.clip_grad": 0.05, "train.safety.max_step_kl": 1e6}
    weights = []
    for clips in (True, False):
        sdk.clips = clips
        trainer, others = make(**settings), [make_sample(n, 1.0) for n in (4, 5)]
        one = take_step(trainer, tmp_path / f"000001-{clips}")
        assert one.metrics["gradient/norm"] > 0.2
        trainer.load(folder=one.folder, method_state=one.memory)
        take_step(trainer, tmp_path / f"000002-{clips}", others)
        weights.append(sdk.saved[f"tinker://run/weights/openclaw-000002-{clips}"][0])
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-9)


def test_samples_that_tinker_cannot_compute_are_left_out_with_a_reason(
    make: Make, tmp_path: Path
) -> None:
    cool = make_sample(7, 1.0, temperature=0.6)
    result = take_step(make(), tmp_path / "000001-a", [*BATCH, cool])
    assert "temperature 0.6; Tinker computes at temperature 1" in result.dropped["t7"].detail
    nothing = take_step(make(), tmp_path / "000001-b", [cool])
    assert (nothing.folder, set(nothing.dropped)) == (None, {"t7"})


def under_lessons(sample: Sample) -> Sample:
    """The second sample of a turn whose prompt had lessons: it teaches the plain prompt."""
    return replace(
        sample,
        reward=None,
        on_policy=False,
        from_teacher=True,
        hinted_prompts=(np.array([7], np.int32),),
    )


def test_a_turn_with_lessons_counts_once(make: Make, tmp_path: Path) -> None:
    result = take_step(make(), tmp_path / "000001-a", [*BATCH, under_lessons(BATCH[0])])
    assert "t1" not in result.dropped
    assert result.metrics["turns"] == len(BATCH)
    assert "loss/teacher_replies" in result.metrics


def test_replies_under_lessons_move_the_plain_prompt_toward_the_teacher(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    """The advantages in float64, the KL penalty without these tokens, and what steps on them do."""
    settings = {
        "train.method": "opd",
        "train.loss.kl_coef": 0.1,
        "train.optimizer.learning_rate": 0.05,
    }
    batch = [under_lessons(make_sample(n, None)) for n in range(1, 5)]
    trainer = make(**settings, **{"train.safety.max_step_kl": 1e9})
    result = take_step(trainer, tmp_path / "000001-a", batch)
    delta = torch.zeros(16, 16, dtype=torch.float64, requires_grad=True)
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for sample in batch:
        reply = sample.response_ids.tolist()
        student = sequence_logprobs(
            base_logits() + delta, [int(sample.prompt_ids[-1]), *reply[:-1]], reply
        )
        teacher = sequence_logprobs(base_logits(), [7, *reply[:-1]], reply)
        advantage = (1 - (student.detach() - teacher).exp()).clamp(min=-1)
        mask = torch.from_numpy(sample.mask)
        total, tokens = total - (advantage * student)[mask].sum(), tokens + int(mask.sum())
    (expected,) = torch.autograd.grad(total / tokens, delta)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(sdk.gradients[0], expected, rtol=1e-4, atol=1e-6)

    def first_tokens() -> float:
        """The mean log-probability of the first tokens, in whose prediction alone the hint makes a difference."""
        return float(np.mean([logprobs[0] for logprobs in trainer.score(batch)]))

    trainer.load(folder=None, method_state={})
    before, wanted = (
        first_tokens(),
        np.mean([base_logits()[7].log_softmax(-1)[s.response_ids[0]] for s in batch]),
    )
    trainer.load(folder=result.folder, method_state=result.memory)
    assert abs(first_tokens() - wanted) < abs(before - wanted)


def test_stale_replays_are_not_counted_among_stale_turns(make: Make, tmp_path: Path) -> None:
    """As at the local trainer: a replay was trained on before, so that it is not lost."""
    stale = make_sample(8, 1.0, gap=40.0)
    stale_replay = make_sample(9, 1.0, gap=40.0, replay=True)
    trained = take_step(make(), tmp_path / "1", [*BATCH, stale, stale_replay])
    assert trained.dropped.keys() == {"t8", "t9"}
    assert trained.metrics["dropped/stale"] == 1
    skipped = take_step(make(), tmp_path / "2", [stale, stale_replay])
    assert (skipped.folder, skipped.metrics["dropped/stale"]) == (None, 1)


def test_without_a_gradient_there_is_no_step(make: Make, sdk: TrainingSdk, tmp_path: Path) -> None:
    same = [replace(BATCH[0], reward=None), make_sample(9, 1.0, gap=40.0)]
    result = take_step(make(**{"train.method": "binary"}), tmp_path / "000001-a", same)
    assert result.folder is None
    assert result.dropped["t1"].code is ReasonCode.NO_SIGNAL
    assert result.dropped["t9"].code is ReasonCode.TOO_STALE
    assert sdk.steps == []


def test_scores_are_those_of_the_loaded_version(make: Make, tmp_path: Path) -> None:
    trainer = make()
    before = trainer.score(BATCH)
    whole = [int(BATCH[0].prompt_ids[-1]), *BATCH[0].response_ids.tolist()]
    expected = sequence_logprobs(base_logits(), whole[:-1], whole[1:])
    np.testing.assert_allclose(before[0], expected, rtol=1e-5)
    result = take_step(trainer, tmp_path / "000001-a")
    trainer.load(folder=result.folder, method_state=result.memory)
    assert not np.allclose(trainer.score(BATCH)[0], before[0])


def step_cost(make: Make, tmp_path: Path) -> int:
    """Tokens that a step on `BATCH` sends, in a home of its own."""
    (tmp_path / "other").mkdir()
    metrics = take_step(make(home=str(tmp_path / "other")), tmp_path / "000001-cost").metrics
    assert metrics["tinker/tokens/scored"] > metrics["tinker/tokens/trained"] > 0
    return int(metrics["tinker/tokens/total"])


def test_the_budget_stops_training_for_good(make: Make, tmp_path: Path) -> None:
    cost = step_cost(make, tmp_path)
    settings = {"tinker.budget_tokens": 2 * cost}
    trainer = make(**settings)
    for number in (1, 2):
        result = take_step(trainer, tmp_path / f"{number:06d}-a")
        trainer.load(folder=result.folder, method_state=result.memory)
    assert result.metrics["tinker/tokens/total"] == 2 * cost, "a step that fits exactly is taken"
    with pytest.raises(
        TrainerAbsent, match=r"tinker.budget_tokens \(\d+\) is reached.*serving is not affected"
    ):
        take_step(trainer, tmp_path / "000003-a")
    with pytest.raises(TrainerAbsent, match="is reached"):
        take_step(make(**settings), tmp_path / "000099-a")
    trainer.load(folder=None, method_state={})  # also after a rollback
    with pytest.raises(TrainerAbsent, match="is reached"):
        take_step(trainer, tmp_path / "000098-a")
    with pytest.raises(TrainerAbsent, match="is reached"):
        trainer.score(BATCH)
    assert take_step(make(), tmp_path / "000097-a").folder is not None


def test_a_step_that_would_exceed_the_budget_does_not_begin(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    cost = step_cost(make, tmp_path)
    trainer = make(**{"tinker.budget_tokens": 2 * cost - 1})
    one = take_step(trainer, tmp_path / "000001-a")
    trainer.load(folder=one.folder, method_state=one.memory)
    before = (len(sdk.restored), len(sdk.saved), len(sdk.gradients))
    words = rf"\({2 * cost - 1}\) is reached: training has sent {cost} tokens, and would send {cost} more"
    with pytest.raises(TrainerAbsent, match=words):
        take_step(trainer, tmp_path / "000002-a")
    assert (len(sdk.restored), len(sdk.saved), len(sdk.gradients)) == before, (
        "the service is not asked"
    )
    assert json.loads((tmp_path / "tinker_usage.json").read_text()) == {"training_tokens": cost}
    assert take_step(trainer, tmp_path / "000002-b", BATCH[:1]).folder is not None, (
        "a smaller one fits"
    )


@pytest.mark.parametrize("repeated", [1, 3])
def test_a_call_that_would_exceed_the_budget_is_not_made(
    make: Make, sdk: TrainingSdk, tmp_path: Path, repeated: int
) -> None:
    """A step that moved too far is taken again, which costs as much each time, and is not known before."""
    cost = step_cost(make, tmp_path)
    calls = len(sdk.gradients)
    settings = {"train.optimizer.learning_rate": 0.5, "train.safety.max_step_kl": 1e-9}
    again = 2 * sum(
        len(s.prompt_ids) + len(s.response_ids) - 1 for s in BATCH
    )  # forward and backward, and forward
    budget = cost + repeated * again - 1
    trainer = make(**settings, **{"tinker.budget_tokens": budget})
    with pytest.raises(TrainerAbsent, match="is reached"):
        take_step(trainer, tmp_path / "000001-a")
    assert len(sdk.gradients) - calls == 1 + repeated, "the last one without the pass after it"
    assert (
        budget - again
        < json.loads((tmp_path / "tinker_usage.json").read_text())["training_tokens"]
        <= budget
    )
    assert not (tmp_path / "000001-a").exists()
    used = (tmp_path / "tinker_usage.json").read_text()
    with pytest.raises(TrainerAbsent, match="is reached"):
        take_step(trainer, tmp_path / "000001-b")
    assert (tmp_path / "tinker_usage.json").read_text() == used, "it does not begin again"


def test_a_version_of_another_base_rank_or_trainer_is_refused(make: Make, tmp_path: Path) -> None:
    result = take_step(make(), tmp_path / "000001-a")
    with pytest.raises(
        ModelError, match=r"with rank 8; the settings say org/model .tinker.model. and 4"
    ):
        make(**{"train.lora.rank": 4}).load(folder=result.folder, method_state={})
    (tmp_path / "000002-b").mkdir()
    (tmp_path / "000002-b" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"weights of another trainer|adapter_model"):
        make().load(folder=str(tmp_path / "000002-b"), method_state={})


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"training_tokens": null}', "[" * 100_000])
def test_a_damaged_token_count_is_one_line_with_the_path(tmp_path: Path, damage: str) -> None:
    (tmp_path / USAGE_FILE).write_text(damage)
    with pytest.raises(
        ModelError, match=f"{USAGE_FILE} cannot be read .*remove it to count from zero"
    ) as caught:
        TrainingBudget(tmp_path, 100)
    assert "\n" not in str(caught.value)


def test_the_token_count_is_on_the_disk_before_it_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure leaves the old count or the new one, and no empty file."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    TrainingBudget(tmp_path, 100).spend_tokens(7, trained=True)
    assert synced == [(tmp_path / USAGE_FILE).stat().st_size]
    assert TrainingBudget(tmp_path, 100).total == 7
