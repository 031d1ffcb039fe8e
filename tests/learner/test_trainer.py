"""The local trainer on a random two-layer model: what a step does, leaves behind, and takes up again."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from openclaw_rl.common import progress
from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]


def weights(trainer: LocalTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def row_of(s: Sample) -> TokenSequence:
    return TokenSequence(
        prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=s.temperature
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_policy_folder_has_the_peft_layout(
    trainer: Make, draw: Draw, tiny: str, tmp_path: Path
) -> None:
    """Loaded by the calls of PEFT's own documentation, it gives the trainer's log-probabilities."""
    made = trainer(learning_rate=1e-2)
    batch = draw(made, 0)
    folder = made.step(batch, str(tmp_path / "policy")).folder
    assert (
        json.loads((tmp_path / "policy" / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
        == tiny
    )
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), folder).eval()
    automatic = AutoModelForCausalLM.from_pretrained(
        folder
    ).eval()  # transformers finds the base by itself
    for s, ours in zip(batch, map(torch.from_numpy, made.score(batch)), strict=True):
        ids = torch.tensor(np.concatenate([s.prompt_ids, s.response_ids]), dtype=torch.long)
        for loaded in (model, automatic):
            with torch.no_grad():
                logp = torch.log_softmax(
                    loaded(input_ids=ids[None]).logits[0].double() / s.temperature, -1
                )
            p = len(s.prompt_ids)
            theirs = logp[p - 1 : -1].gather(-1, ids[p:, None])[:, 0]
            torch.testing.assert_close(theirs, ours.double(), atol=1e-5, rtol=0)


def test_a_step_matches_the_reference(
    trainer: Make, draw: Draw, reference: ModuleType, tmp_path: Path
) -> None:
    """Its loss, from log-probabilities to the last denominator, stated a second time."""
    made = trainer(
        w_binary=0.6,
        w_opd=1.7,
        kl_coef=0.4,
        opd_clip=0.8,
        learning_rate=1e-2,
        max_gap=9.0,
        micro_tokens=40,
    )
    memory = made.step(draw(made, 0), str(tmp_path / "0")).memory
    batch = [
        replace(s, weight=(1.0, 0.5, 0.2)[n % 3]) for n, s in enumerate(draw(made, 1, 9, noise=0.4))
    ]
    rows = [row_of(s) for s in batch]
    student, base = made.logprobs(rows), made.logprobs(rows, base=True)
    state = {("agent", k): tuple(v) for k, v in memory["baseline"]["agents"].items()}
    state["everyone"] = tuple(memory["baseline"]["all"])
    stated = []
    for s, o, ref in zip(batch, student, base, strict=True):
        hinted = [
            TokenSequence(prompt_ids=h, response_ids=s.response_ids, temperature=s.temperature)
            for h in s.hinted_prompts
        ]
        teachers = [t.tolist() for t in made.logprobs(hinted, base=True)]
        r = len(o)
        b = reference.baselines(state, s.agent, 8.0)
        stated.append(
            {
                "logp": o.tolist(),
                "mu": s.logprobs.tolist(),
                "base": ref.tolist(),
                "mask": s.mask.tolist(),
                "advantages": {
                    "binary": None if s.reward is None else [s.weight * (s.reward - b)] * r,
                    "opd": [
                        reference.opd_advantage(o[t].item(), [x[t] for x in teachers], 0.8)
                        for t in range(r)
                    ]
                    if teachers
                    else None,
                },
            }
        )
    value, _ = reference.total_loss(
        stated,
        weights={"binary": 0.6, "opd": 1.7},
        kl_coef=0.4,
        average_length=memory["reply_tokens"],
        bounds={"low": 0.8, "high": 1.28, "dual": 3.0, "gap_low": 0.5, "gap_high": 5.0},
    )
    result = made.step(batch, str(tmp_path / "1"))
    assert result.metrics["loss/total"] == pytest.approx(value, rel=1e-4, abs=1e-6)
    silent = {s.turn for s in batch if s.reward is None and not s.hinted_prompts}
    assert set(result.dropped) == silent
    assert len(silent) in range(1, 9), "the batch holds a sample without signal, and some with"
    lengths = [int(s.mask.sum()) for s in batch if s.turn not in silent]
    average = memory["reply_tokens"]
    for n in lengths:
        average = 0.99 * average + 0.01 * n
    assert result.memory["reply_tokens"] == pytest.approx(average)


def test_equal_seeds_give_equal_bytes(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    first, second, other = trainer(seed=3), trainer(seed=3), trainer(seed=4)
    batch = draw(first, 0)
    digests = [
        t.step(batch, str(tmp_path / str(n))).digest for n, t in enumerate((first, second, other))
    ]
    assert digests[0] == digests[1] != digests[2]
    assert weights(first).equal(weights(second))


def test_stale_turns_are_left_out_with_their_reason(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    made = trainer(max_gap=0.5)
    fresh = draw(made, 0, 4, reward=1.0)
    stale = draw(made, 1, 1, reward=1.0)[0]
    stale = Sample(
        **{f: getattr(stale, f) for f in stale.__slots__} | {"logprobs": stale.logprobs - 1.0}
    )
    result = made.step([*fresh, stale], str(tmp_path / "policy"))
    assert result.metrics["turns"] == 4
    assert list(result.dropped) == [stale.turn]
    assert "too stale: mean |log ratio| 1.00" in result.dropped[stale.turn].detail


@pytest.mark.parametrize("kind", ["stale", "silent", "settled"])
def test_a_batch_without_signal_takes_no_step(
    trainer: Make, draw: Draw, tmp_path: Path, kind: str
) -> None:
    made = trainer("opd" if kind == "settled" else "combine")
    before = weights(made)
    if kind == "stale":
        batch = [
            Sample(**{f: getattr(s, f) for f in s.__slots__} | {"logprobs": s.logprobs - 2.0})
            for s in draw(made, 0)
        ]
    elif kind == "silent":
        batch = draw(made, 0, reward=None, hinted_prompts=())
    else:  # the teacher's prompt is the student's, and the student is still the base: T = o
        batch = [
            Sample(**{f: getattr(s, f) for f in s.__slots__} | {"hinted_prompts": (s.prompt_ids,)})
            for s in draw(made, 0)
        ]
    result = made.step(batch, str(tmp_path / "policy"))
    assert result.folder is None
    assert set(result.dropped) == {s.turn for s in batch}
    assert result.memory == {}
    assert not list(tmp_path.iterdir())
    assert weights(made).equal(before)


def test_a_failed_step_keeps_the_weights(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(kl_coef=1e38, learning_rate=1e-2)
    made.step(draw(made, 0), str(tmp_path / "0"))
    before = weights(made)
    result = made.step(draw(made, 1), str(tmp_path / "1"))
    assert not np.isfinite(result.metrics["gradient/norm"])
    assert weights(made).equal(before)


def test_loading_the_base_resets_the_policy(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(learning_rate=1e-2)
    first = made.step(draw(made, 0), str(tmp_path / "0"))
    made.load(folder=None, method_state={})
    assert made.step(draw(made, 0), str(tmp_path / "1")).digest == first.digest


def test_an_adapter_of_another_shape_is_refused(
    trainer: Make, draw: Draw, four: str, tmp_path: Path
) -> None:
    made = trainer(lora={"rank": 4})
    folder = made.step(draw(made, 0), str(tmp_path / "policy")).folder
    with pytest.raises(ConfigError, match=r"train\.lora\.rank 4, but the settings say 8"):
        trainer(lora={"rank": 8}).load(folder=folder, method_state={})
    with pytest.raises(ModelError, match="do not fit the base model"):
        trainer(lora={"rank": 4, "targets": ("q_proj",)}).load(folder=folder, method_state={})
    with pytest.raises(ModelError, match="cannot read the policy's adapter"):
        made.load(folder=str(tmp_path / "nowhere"), method_state={})


def test_a_policy_without_optimizer_state_is_resumed(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = trainer()
    batch = draw(made, 0)
    folder = made.step(batch, str(tmp_path / "0")).folder
    assert folder is not None
    (Path(folder) / OPTIMIZER_FILE).unlink()
    made.load(folder=folder, method_state={})
    assert "the optimizer starts from the beginning" in caplog.text
    assert made.step(batch, str(tmp_path / "1")).metrics["step"] == 2


def test_policy_folders_are_written_atomically(tmp_path: Path) -> None:
    (tmp_path / ".a.tmp").mkdir()
    (tmp_path / ".a.tmp" / "half").write_bytes(b"what a killed process left")
    write_folder(tmp_path / "a", {"x": b"1", "y": b"2"})
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "x", "y"]
    with pytest.raises(FileExistsError, match="written once"):
        write_folder(tmp_path / "a", {"x": b"3"})
    assert (tmp_path / "a" / "x").read_bytes() == b"1"


def test_a_missing_model_is_refused(trainer: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        trainer(path=str(tmp_path))


def test_a_step_stays_in_its_trust_region(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    free, bounded = (trainer(learning_rate=3e-2, max_step_kl=bound) for bound in (1e9, 0.01))
    scales = []
    for number in range(3):
        batch = draw(bounded, number)
        far = free.step(draw(free, number), str(tmp_path / f"free{number}")).metrics
        near = bounded.step(batch, str(tmp_path / f"bounded{number}")).metrics
        scales.append(near["step/scale"])
        assert far["step/scale"] == 1
        assert near["kl/step"] <= 0.01
    assert far["kl/step"] > 0.01, "the control did go further"
    assert min(scales) < 1


def test_a_step_that_stays_too_large_is_rejected(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """And nothing of it stays, once the trainer stands where it stood: the next step is as if it had not been."""
    never, held = trainer(learning_rate=3e-2, max_gap=9.0), trainer(learning_rate=3e-2, max_gap=9.0)
    first = [t.step(draw(t, 0), str(tmp_path / f"{n}")) for n, t in enumerate((never, held))][1]
    safety = held._train.safety.model_copy(update={"max_step_kl": 1e-12})
    held._train = held._train.model_copy(update={"safety": safety})
    metrics = held.step(draw(held, 1), str(tmp_path / "refused")).metrics
    assert metrics["step/scale"] == 2**-8
    wide = {"safety.gate_grad_norm": 1e9, "safety.gate_kl": 1e9}
    words = rejection_reason(metrics, train_settings(wide | {"safety.max_step_kl": 1e-12}))
    assert str(words).startswith("even 0.00391 of the step moves the policy by ")
    assert (
        rejection_reason(metrics, train_settings(wide | {"safety.max_step_kl": metrics["kl/step"]}))
        is None
    )
    held._train = never._train
    held.load(folder=first.folder, method_state=first.memory)
    batch = draw(never, 2)
    digests = {
        t.step(batch, str(tmp_path / f"next{n}")).digest for n, t in enumerate((never, held))
    }
    assert len(digests) == 1


def test_a_small_step_is_left_alone(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    bounds = (1e9, 0.01)
    made = [trainer(learning_rate=1e-5, max_step_kl=bound) for bound in bounds]
    digests = {t.step(draw(t, 0), str(tmp_path / str(n))).digest for n, t in enumerate(made)}
    assert len(digests) == 1


def test_the_engine_gap_counts_only_on_policy_tokens(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    made = trainer(max_gap=9.0)
    batch = draw(made, 3)
    truth = made.logprobs([row_of(s) for s in batch])
    off = 1e-3  # what an engine would compute differently
    batch = [
        replace(
            s,
            logprobs=(t.numpy() + (off if i % 2 else 0.5)).astype(np.float32),
            on_policy=bool(i % 2),
        )
        for i, (s, t) in enumerate(zip(batch, truth, strict=True))
    ]
    metrics = made.step(batch, str(tmp_path / "out")).metrics
    assert metrics["gap/engine"] == pytest.approx(off, rel=0.01)
    assert metrics["gap/engine/tokens"] == sum(int(s.mask.sum()) for s in batch if s.on_policy)
    older = [replace(s, on_policy=False) for s in batch]
    assert "gap/engine" not in trainer(max_gap=9.0).step(older, str(tmp_path / "older")).metrics


@pytest.mark.parametrize("loss", ["clip", "cispo", "gspo"])
def test_every_loss_favours_the_better_reply(
    trainer: Make, draw: Draw, tmp_path: Path, loss: str
) -> None:
    made = trainer("binary", loss=loss, kl_coef=0.0, max_step_kl=1e9, max_gap=9.0)
    good, bad = (
        draw(made, seed, count=1, reward=reward)[0] for seed, reward in ((1, 1.0), (2, -1.0))
    )
    before = [t.sum() for t in made.logprobs([row_of(good), row_of(bad)])]
    assert made.step([good, bad], str(tmp_path / "out")).folder is not None
    after = [t.sum() for t in made.logprobs([row_of(good), row_of(bad)])]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_an_unknown_token_blames_its_turn(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """A `ValueError`, which is of the batch and not of the trainer: the turn leaves, and the worker continues."""
    made = trainer()
    first, *others = draw(made, 0)
    for where, token in itertools.product(
        ("prompt_ids", "response_ids", "hinted_prompts"), (-1, 64)
    ):
        ids = np.array([*first.response_ids[:-1], token], np.int32)
        broken = replace(first, **{where: (ids,) if where == "hinted_prompts" else ids})
        with pytest.raises(
            ValueError, match=f"turn turn-0-0: expected tokens from 0 to 63, got {token}"
        ):
            made.step([*others, broken], str(tmp_path / "out"))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
def test_dropout_of_the_adapter_does_not_enable_that_of_the_base(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """No reply was sampled with it: it would stand between policy and engine, and masks would take the tokens."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.5,
        bos_token_id=1,
        eos_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    steps = []
    for name, dropout in (("without", 0.0), ("with", 1e-9)):
        made = trainer(
            "binary", path=str(tmp_path / "base"), lora={"rank": 4, "dropout": dropout}, max_gap=9.0
        )
        steps.append(made.step(draw(made, 3), str(tmp_path / name)).metrics)
    for name in ("loss/total", "gradient/norm", "masked/gap"):
        assert steps[1][name] == pytest.approx(steps[0][name], rel=1e-4, abs=1e-5), name


def test_several_epochs_are_several_steps_on_the_decoupled_loss(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """The weights after two epochs: a first step as with one, then one whose ratio is to the policy before both."""
    settings = {"max_gap": 9.0, "max_step_kl": 1e9, "learning_rate": 1e-3, "kl_coef": 0.0}
    one, two = trainer("binary", **settings), trainer("binary", **settings, epochs=2)
    batch = draw(one, 5, noise=0.2)
    start = weights(one)
    one.step(batch, str(tmp_path / "one"))
    two.step(batch, str(tmp_path / "two"))
    once, twice = (weights(one) - start).norm(), (weights(two) - start).norm()
    assert 1.3 * once < twice < 2.6 * once
    assert two.step(batch, str(tmp_path / "again")).metrics["step"] == 2.0, (
        "a batch is one version, whatever its epochs"
    )


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("nope",), "match no layers"),
        (("embed_tokens", "q_proj"), "embed_tokens .* is a Embedding"),
    ],
)
def test_targets_that_cannot_be_served_are_refused(
    trainer: Make, targets: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        trainer(lora={"rank": 4, "targets": targets})


def test_each_pass_of_a_step_is_progress(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """A step of minutes must not look like a hang: a pass is progress when it begins and when it ends."""
    few, many = (trainer(learning_rate=1e-2, micro_tokens=tokens) for tokens in (10_000, 16))
    batch = draw(few, 0)
    counts = []
    for made, name in ((few, "few"), (many, "many")):
        before = progress.progress_count()
        made.step(batch, str(tmp_path / name))
        counts.append(progress.progress_count() - before)
    assert counts[0] >= 6, "scoring, microbatch, trust region"
    assert counts[1] >= counts[0] + 2 * (len(batch) - 1)
