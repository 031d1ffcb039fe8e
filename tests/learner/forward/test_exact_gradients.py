"""A whole step against the plain way: one turn at a time, all logits, no tree, no chunks, formulas stated apart.

In float64, gradients of every trained weight to 1e-6 relative, for every method, family and kind of weights.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.learner.conftest import save_tiny
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.granite.modeling_granite import GraniteRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from openclaw_rl.learner.forward import lm_head
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.settings.load import TrainConfig, train_settings
from openclaw_rl.types import EpisodeStep

V = 64
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
METHODS: dict[str, dict[str, Any]] = {
    "binary": {"method": "binary"},
    "opd": {"method": "opd", "opd_clip": 0.7},
    "opd-overlap": {"method": "opd", "hint_choice": "overlap", "topk": 5},
    "combine": {"method": "combine", "w_binary": 0.6, "w_opd": 1.7},
    "combine-student": {"method": "combine", "w_opd": 1.7, "distill": "student_topk", "topk": 4},
    "combine-teacher": {
        "method": "combine",
        "distill": "teacher_topk",
        "topk": 6,
        "divergence": "forward",
    },
    "sdpo": {"method": "sdpo", "topk": 7},
    "sdpo-mixture": {
        "method": "sdpo",
        "topk": 7,
        "hint_choice": "mixture",
        "divergence": "jsd",
        "distill_cap": 1.1,
    },
    "sdft": {"method": "sdft", "topk": 7},
}
FURTHER: dict[str, tuple[str, str, dict[str, Any]]] = {  # one family and kind of weights each
    "groups": ("llama", "lora", {"method": "groups", "group_scale": "std", "group_floor": 0.3}),
    "cispo": ("gemma", "full", {"method": "binary", "loss": "cispo"}),
    "gspo": ("llama", "full", {"method": "opd", "loss": "gspo"}),
    "gspo-student": (
        "llama",
        "lora",
        {"method": "combine", "distill": "student_topk", "topk": 4, "loss": "gspo"},
    ),
    "scaled": ("granite", "full", {"method": "combine", "distill": "student_topk", "topk": 4}),
    "capped": ("gemma3", "full", {"method": "combine"}),
    "capped-topk": ("gemma3", "lora", {"method": "sdft", "topk": 7}),
    "epochs": (
        "gemma",
        "lora",
        {"method": "combine", "distill": "student_topk", "topk": 4, "epochs": 2},
    ),
}
SETTINGS: dict[str, Any] = {
    "max_gap": 99.0,
    "max_batch_gap": 99.0,
    "max_step_kl": 1e9,
    "clip_grad": 1e12,
    "learning_rate": 1e-12,  # the gradient is what is looked at
    "kl_coef": 0.2,
    "lora": {"rank": 3},
}
MEMORY = {
    "reply_tokens": 6.5,
    "baseline": {"all": [0.3, 9], "agents": {"a": [0.6, 5], "b": [-0.2, 1]}},
}
BOUNDS = {"low": 0.8, "high": 1.28, "dual": 3.0, "gap_low": 0.5, "gap_high": 5.0}
OTHER = {
    "clip": {},
    "cispo": {"high": 5.0},
    "gspo": {"low": 1 - 3e-4, "high": 1 + 4e-4},
}  # bounds of other losses


def episodes_of_groups() -> list[EpisodeStep]:
    """Rollouts of two steps, two and one of one task; one of one and one of two of another."""
    groups, names, numbers = "tttttuuu", "aabbcdee", (0, 1, 0, 1, 0, 0, 0, 1)
    outcomes, rewards = (
        (1.0, 1.0, -1.0, -1.0, 0.5, 1.0, -1.0, -1.0),
        (0.5, None, -0.5, 1.0, 0.0, None, 1.0, 0.0),
    )
    return [
        EpisodeStep(
            group=groups[n],
            episode=names[n],
            step=numbers[n],
            reward=outcomes[n],
            step_reward=rewards[n],
            rewards=tuple(
                {names[k]: outcomes[k] for k in range(8) if groups[k] == groups[n]}.values()
            ),
            step_rewards=tuple(
                reward
                for k, reward in enumerate(rewards)
                if (groups[k], numbers[k]) == (groups[n], numbers[n]) and reward is not None
            ),
        )
        for n in range(8)
    ]


EPISODES = episodes_of_groups()


@pytest.fixture(autouse=True)
def wide_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The families' norms compute in float32 whatever the model is in; their rounding would be all that is seen."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        gemma = isinstance(self, GemmaRMSNorm | Gemma3RMSNorm)
        eps = self.eps if gemma else self.variance_epsilon
        return (self.weight + gemma) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    for kind in (Qwen3RMSNorm, LlamaRMSNorm, GemmaRMSNorm, Gemma3RMSNorm, GraniteRMSNorm):
        monkeypatch.setattr(kind, "forward", norm)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("exact")
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(root / "llama")
    GemmaForCausalLM(GemmaConfig(**SHAPE)).save_pretrained(root / "gemma")
    GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=3.0)).save_pretrained(root / "granite")
    capped = Gemma3TextConfig(
        **SHAPE, final_logit_softcapping=2.0, layer_types=["full_attention"] * 2
    )
    Gemma3ForCausalLM(capped).save_pretrained(root / "gemma3")
    made = {name: str(root / name) for name in ("llama", "gemma", "granite", "gemma3")}
    return made | {"qwen3": save_tiny(root / "qwen3")}


def plain(model: Any, prompt: np.ndarray, s: Sample) -> torch.Tensor:
    """[R, V] by the model's own attention, all logits of the row."""
    ids = torch.from_numpy(np.concatenate([prompt, s.response_ids]).astype(np.int64))
    logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0] / s.temperature
    return torch.log_softmax(logits, -1)[len(prompt) - 1 :]


def session(seed: int, *, rewards: bool = True, hints: bool = True) -> list[Sample]:
    """Turns upon one trunk, each with replies of uneven lengths, up to three hints, scores or none, masks with gaps."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> np.ndarray:
        return rng.integers(0, V, int(rng.integers(low, high))).astype(np.int32)

    history, out = draw(10, 20), []
    for n in range(8):
        prompt, response = np.concatenate([history, draw(1, 6)]), draw(1, 9)
        mask = rng.random(len(response)) < 0.7
        mask[rng.integers(len(response))] = True
        hinted = [
            np.concatenate([prompt[:-1], draw(1, 5), prompt[-1:]])
            for _ in range((0, 1, 3, 2)[n % 4] * hints)
        ]
        out.append(
            Sample(
                turn=f"turn-{n}",
                agent="ab"[n % 2],
                weight=(1.0, 0.5, 0.2)[n % 3],
                prompt_ids=prompt,
                response_ids=response,
                logprobs=np.zeros(len(response), np.float32),
                mask=mask,
                temperature=float(rng.uniform(0.6, 1.4)),
                version=0,
                reward=(1.0, -1.0, None)[n % 3] if rewards else None,
                hinted_prompts=tuple(hinted),
                # Rollouts of two steps, two and one of one task; one of one and one of two of another.
                episode=EPISODES[n],
            )
        )
        history = history if n % 3 else np.concatenate([prompt, response])
    return out


def made_double(folder: str, train: TrainConfig) -> LocalTrainer:
    """In float64, and away from the base."""
    made = LocalTrainer(folder, make_method(train), train)
    made.load(folder=None, method_state=MEMORY)
    made.model.double()
    if train.finetune == "full":
        for name, base in made._weights._base.items():
            made._weights._base[name] = base.double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in made._weights.parameters.items():
            spread = 0.02 if train.finetune == "full" else 0.2 * ("lora_B" in name)
            weight += spread * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return made


class Reference:
    """The same step from the formulas: values that the trainer tells, and the gradient of every trained weight."""

    def __init__(
        self, reference: ModuleType, made: LocalTrainer, folder: str, train: TrainConfig
    ) -> None:
        self._reference, self._train = reference, train
        self._model = copy.deepcopy(made.model)
        self._student = self._model if train.finetune == "full" else self._model.get_base_model()
        self._student.set_attn_implementation("sdpa")
        self._base = (
            AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").double().eval()
        )
        named = dict(self._model.named_parameters())
        self._parameters = [named[name] for name in made._weights.parameters]

    def sampled(self, samples: list[Sample]) -> list[Sample]:
        """With sampled log-probabilities around the student's own, some of them far away."""
        rng, out = np.random.default_rng(2), []
        for s in samples:
            o = self._own(plain(self._student, s.prompt_ids, s), s).detach().numpy()
            noise = rng.normal(0, 0.25, len(o)) + rng.choice([0, 0, 0, 0, 0, 0, 0.9, -2.0], len(o))
            fields = {f: getattr(s, f) for f in s.__slots__}
            out.append(Sample(**fields | {"logprobs": (o + noise).astype(np.float32)}))
        return out

    def gradients(self, samples: list[Sample]) -> tuple[float, tuple[torch.Tensor, ...]]:
        """(the loss, d loss / d weight for each)."""
        whole = [plain(self._student, s.prompt_ids, s) for s in samples]
        stated = [self._stated(s, all_RV) for s, all_RV in zip(samples, whole, strict=True)]
        if self._train.method == "groups":
            self._grouped(samples, stated)
        weights = {
            "binary": self._train.loss.w_binary,
            "opd": self._train.loss.w_opd,
            "groups": 1.0,
        }
        if self._train.method != "combine":
            weights = dict.fromkeys(weights, 1.0)
        value, slopes = self._valued(stated, weights | {"topk": 0.0})
        followed, bins = self._reference.followed_loss(
            stated,
            kind=self._train.distill.divergence,
            cap=self._train.distill.ratio_clip,
            average_length=6.5,
            gap_low=0.5,
            gap_high=5.0,
            decoupled=self._train.batch.epochs > 1,
        )
        total = torch.zeros((), dtype=torch.float64)
        for s, all_RV, given, slope, rows in zip(samples, whole, stated, slopes, bins, strict=True):
            total = total + (self._own(all_RV, s) * torch.tensor(slope, dtype=torch.float64)).sum()
            for t, row in enumerate(rows):
                total = (
                    total + (all_RV[t][given["ids"][t]] * weights["opd"] * torch.tensor(row)).sum()
                )
        return value + weights["opd"] * followed, torch.autograd.grad(total, self._parameters)

    def _valued(
        self, stated: list[dict[str, Any]], weights: dict[str, float]
    ) -> tuple[float, list[list[float]]]:
        """The loss without targets, and its gradient. A second step starts from the first one's policy, all but."""
        train, common = self._train, {"weights": weights, "kl_coef": 0.2, "average_length": 6.5}
        if train.loss.surrogate == "clip" and train.batch.epochs == 1:
            return self._reference.total_loss(stated, **common, bounds=BOUNDS)  # type: ignore[no-any-return]
        given = [s | ({"old": s["logp"]} if train.batch.epochs > 1 else {}) for s in stated]
        bounds = BOUNDS | OTHER[train.loss.surrogate]
        value, slopes, _ = self._reference.corrected_loss(
            given, **common, kind=train.loss.surrogate, cap=2.0, **bounds
        )
        return value, slopes

    def _grouped(self, samples: list[Sample], stated: list[dict[str, Any]]) -> None:
        """Add the advantages over all samples."""
        steps = [
            {
                "task": e.group,
                "rollout": e.episode,
                "step": e.step,
                "outcome": e.reward,
                "reward": e.step_reward,
            }
            for s in samples
            if (e := s.episode)
        ]
        for s, a in zip(
            stated,
            self._reference.group_advantages(steps, floor=self._train.loss.group_floor),
            strict=True,
        ):
            s["advantages"]["groups"] = None if a is None else [a] * len(s["logp"])

    def _own(self, all_RV: torch.Tensor, s: Sample) -> torch.Tensor:
        return all_RV.gather(-1, torch.from_numpy(s.response_ids.astype(np.int64))[:, None])[:, 0]

    @torch.no_grad()
    def _stated(self, s: Sample, all_RV: torch.Tensor) -> dict[str, Any]:
        """The sample as tests/methods/reference.py wants it."""
        train, o = self._train, self._own(all_RV, s).tolist()
        teachers = [plain(self._base, prompt, s) for prompt in s.hinted_prompts]
        advantages: dict[str, Any] = {"binary": None, "opd": None, "topk": None}
        if train.method in ("binary", "combine") and s.reward is not None:
            state = {("agent", k): tuple(v) for k, v in MEMORY["baseline"]["agents"].items()}  # type: ignore[index]
            b = self._reference.baselines(state | {"everyone": (0.3, 9)}, s.agent, 8.0)
            advantages["binary"] = [s.weight * (s.reward - b)] * len(o)
        by = {"sdpo": "student_topk", "sdft": "teacher_topk"}.get(
            train.method, train.distill.target
        )
        choice = train.distill.hint_choice or ("mixture" if by == "token" else "overlap")
        target, ids = None, None
        if train.method not in ("binary", "groups") and teachers:
            tops = [x.topk(train.distill.topk, -1).indices.tolist() for x in (all_RV, *teachers)]
            if choice == "overlap":
                number = self._reference.closest_hint(tops[0], tops[1:], s.mask)
                teachers, tops = [teachers[number]], [tops[0], tops[1 + number]]
            if by == "token":
                at = [self._own(x, s).tolist() for x in teachers]
                advantages["opd"] = [
                    self._reference.opd_advantage(o[t], [x[t] for x in at], train.distill.opd_clip)
                    for t in range(len(o))
                ]
            else:
                advantages["topk"] = [0.0] * len(
                    o
                )  # it is in the batch: the KL to the base stands there
                ids = tops[0] if by == "student_topk" else tops[1]
                even = torch.stack(teachers).exp().mean(0).log()
                target = [
                    (all_RV[t][ids[t]].tolist(), even[t][ids[t]].tolist()) for t in range(len(o))
                ]
        return {
            "logp": o,
            "mu": s.logprobs.astype(np.float64).tolist(),
            "base": self._own(plain(self._base, s.prompt_ids, s), s).tolist(),
            "mask": s.mask.tolist(),
            "advantages": advantages,
            "target": target,
            "ids": ids,
        }


@pytest.mark.parametrize(
    ("family", "tuned", "name"),
    [
        (family, tuned, name)
        for family, names in {
            "qwen3": [*METHODS],
            "llama": ["opd", "sdpo"],
            "gemma": ["binary", "sdft"],
        }.items()
        for tuned in ("lora", "full")
        for name in names
    ],
)
def test_a_step_with_the_tree_equals_the_plain_one(
    reference: ModuleType,
    folders: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    tuned: str,
    name: str,
) -> None:
    """Heads in chunks; and on one family one pass for each row, and batches in which one of the terms has no sample."""
    monkeypatch.setattr(lm_head, "CHUNK_ELEMENTS", V * 5)
    batches: list[tuple[dict[str, Any], int]] = [({}, 10_000)]
    if family == "qwen3":
        batches.append(({}, 1))
    if (family, tuned) == ("qwen3", "lora") and name in (
        "binary",
        "opd",
        "combine",
        "combine-student",
    ):
        batches += [({"rewards": False}, 10_000), ({"hints": False}, 1)]
    for number, (batch, micro) in enumerate(batches):
        train = train_settings(SETTINGS | METHODS[name] | {"weights": tuned, "micro_tokens": micro})
        made = made_double(folders[family], train)
        stated = Reference(reference, made, folders[family], train)
        samples = stated.sampled(session(9, **batch))
        result = made.step(samples, str(tmp_path / str(number)))
        if result.folder is None:
            assert batch in ({"rewards": False}, {"hints": False}), (
                "one of its terms is the only one"
            )
            continue
        assert result.metrics["masked/gap"] > 0, "some tokens are out of the band"
        agree(result, stated, made, samples)


def agree(result: StepResult, stated: Reference, made: LocalTrainer, samples: list[Sample]) -> None:
    value, gradients = stated.gradients(samples)
    assert result.metrics["loss/total"] == pytest.approx(
        value, rel=1e-6, abs=1e-7
    )  # its terms cancel
    for (where, weight), wanted in zip(made._weights.parameters.items(), gradients, strict=True):
        assert weight.grad is not None
        assert (weight.grad - wanted).abs().max() <= 1e-6 * wanted.abs().max(), where


@pytest.mark.parametrize("name", FURTHER)
def test_groups_other_losses_and_second_steps_equal_the_plain_ones(
    reference: ModuleType, folders: dict[str, str], tmp_path: Path, name: str
) -> None:
    family, tuned, own = FURTHER[name]
    train = train_settings(SETTINGS | own | {"weights": tuned})
    made = made_double(folders[family], train)
    stated = Reference(reference, made, folders[family], train)
    samples = stated.sampled(session(9))
    agree(made.step(samples, str(tmp_path / "out")), stated, made, samples)


@pytest.mark.parametrize("name", ["binary", "combine", "groups"])
def test_credit_is_as_exact_as_the_model(
    reference: ModuleType, folders: dict[str, str], tmp_path: Path, name: str
) -> None:
    """Where gradients nearly cancel, advantages that were rounded to float32 would be all that is seen."""
    train = train_settings(SETTINGS | (FURTHER["groups"][2] if name == "groups" else METHODS[name]))
    made = made_double(folders["llama"], train)
    stated = Reference(reference, made, folders["llama"], train)
    samples = stated.sampled(session(9))
    made.step(samples, str(tmp_path / "out"))
    for weight, wanted in zip(
        made._weights.parameters.values(), stated.gradients(samples)[1], strict=True
    ):
        assert weight.grad is not None
        assert (weight.grad - wanted).abs().max() <= 1e-10 * wanted.abs().max()
