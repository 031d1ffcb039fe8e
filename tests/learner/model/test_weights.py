"""What is trained (adapter, adapter on 4 bits, whole model) on three families: real steps, files, and the way back."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.learner.conftest import save_tiny
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from openclaw_rl.common.policy_digest import digest_of_folder, weight_files
from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import ModelConfig, train_settings

Draw = Callable[..., list[Sample]]
Make = Callable[..., LocalTrainer]
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
MODES: dict[str, dict[str, Any]] = {
    "lora": {},
    "lora-bf16": {"dtype": "bfloat16"},
    "lora-offloaded": {"offload_optimizer": True},
    "qlora": {"base_bits": 4},
    "full": {"weights": "full", "learning_rate": 1e-3},
    "full-bf16": {"weights": "full", "learning_rate": 1e-3, "dtype": "bfloat16"},
    "full-bf16-offloaded": {
        "weights": "full", "learning_rate": 1e-3, "dtype": "bfloat16", "offload_optimizer": True
    },
}  # fmt: skip


def _save(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a random model: head tied (qwen3), not tied (llama), tied with scaled embeddings (gemma)."""
    root = tmp_path_factory.mktemp("families")
    torch.manual_seed(1)
    made = {
        "qwen3": save_tiny(root / "qwen3"),
        "llama": _save(LlamaForCausalLM(LlamaConfig(**SHAPE)), root / "llama"),
        "gemma": _save(GemmaForCausalLM(GemmaConfig(**SHAPE)), root / "gemma"),
    }
    for folder in made.values():
        (Path(folder) / "tokenizer.json").write_text("{}")
    return lambda name: made[name]


@pytest.fixture
def make(family: Callable[[str], str]) -> Make:
    """A trainer in one of `MODES`, otherwise of `settings`."""

    def made(mode: str = "lora", name: str = "qwen3", **settings: Any) -> LocalTrainer:
        if (
            mode == "qlora"
            and "bitsandbytes" not in sys.modules
            and find_spec("bitsandbytes") is None
        ):
            pytest.skip("bitsandbytes is not installed: `make test-qlora` runs this")
        wanted = {"max_gap": 9.0, "max_step_kl": 1e9, "lora": {"rank": 4}, "learning_rate": 1e-2}
        wanted |= MODES[mode] | settings
        path = wanted.pop("path", None) or family(name)
        model = ModelConfig.model_construct(
            device="cpu", dtype=wanted.pop("dtype", "auto")
        )  # float64, too
        train = train_settings(wanted)
        method = make_method(train_settings({"method": "combine"}))
        return LocalTrainer(path, method, train, model)

    return made


def row_of(s: Sample) -> TokenSequence:
    return TokenSequence(
        prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=s.temperature
    )


def trained(trainer: LocalTrainer) -> torch.Tensor:
    """All weights that are trained, in the order of their names."""
    named = sorted((n, p) for n, p in trainer.model.named_parameters() if p.requires_grad)
    return torch.cat([p.detach().flatten().double() for _, p in named])


def gradients(trainer: LocalTrainer) -> torch.Tensor:
    named = sorted((n, p) for n, p in trainer.model.named_parameters() if p.requires_grad)
    return torch.cat([p.grad.flatten().double() for _, p in named if p.grad is not None])


@pytest.mark.parametrize(
    ("mode", "name"),
    [(mode, "qwen3") for mode in MODES]
    + [
        (mode, name)
        for mode in ("lora", "qlora", "full-bf16-offloaded")
        for name in ("llama", "gemma")
    ],
)
def test_every_finetune_mode_takes_a_step(
    make: Make, draw: Draw, tmp_path: Path, mode: str, name: str
) -> None:
    made = make(mode, name)
    batch = draw(made, 0)
    before, base = trained(made), made.logprobs([row_of(s) for s in batch], base=True)
    result = made.step(batch, str(tmp_path / "policy"))
    assert result.digest == digest_of_folder(tmp_path / "policy")
    assert result.metrics["gradient/norm"] > 0
    assert result.metrics["kl/step"] > 0
    assert all(np.isfinite(v) for v in result.metrics.values())
    assert not trained(made).equal(before)
    for was, still in zip(base, made.logprobs([row_of(s) for s in batch], base=True), strict=True):
        assert was.equal(still), "the base below stays what it was"
    assert not made.logprobs([row_of(batch[0])])[0].equal(base[0])


@pytest.mark.parametrize(
    "mode", ["lora", "lora-offloaded", "qlora", "full-bf16", "full-bf16-offloaded"]
)
def test_resuming_is_bit_exact(make: Make, draw: Draw, tmp_path: Path, mode: str) -> None:
    """Four steps are two steps, a new trainer, and two more; so are they after a look at another version."""
    settings: dict[str, Any] = (
        {} if mode.startswith("full") else {"lora": {"rank": 4, "dropout": 0.1}}
    )
    settings |= {"warmup_samples": 20}
    straight = make(mode, **settings)
    batches = [draw(straight, seed) for seed in range(4)]
    done = [
        straight.step(batch, str(tmp_path / f"straight-{n}")) for n, batch in enumerate(batches)
    ]

    first = make(mode, **settings)
    for n in range(2):
        half = first.step(batches[n], str(tmp_path / f"half-{n}"))
    second = make(mode, **settings)
    second.load(folder=str(tmp_path / "straight-0"), method_state={})
    second.load(folder=half.folder, method_state=json.loads(json.dumps(half.memory)))
    for n in range(2, 4):
        rest = second.step(batches[n], str(tmp_path / f"rest-{n}"))

    assert rest.digest == done[-1].digest
    assert rest.memory == done[-1].memory
    assert {k: v for k, v in rest.metrics.items() if k != "seconds"} == {
        k: v for k, v in done[-1].metrics.items() if k != "seconds"
    }
    states = [(tmp_path / n / "optimizer.state").read_bytes() for n in ("straight-3", "rest-3")]
    assert states[0] == states[1]
    assert done[0].digest != done[1].digest != done[2].digest


@pytest.mark.parametrize("mode", ["lora", "full-bf16"])
def test_an_offloaded_optimizer_gives_the_same_weights(
    make: Make, draw: Draw, tmp_path: Path, mode: str
) -> None:
    here, there = make(mode), make(mode, offload_optimizer=True)
    for number in range(3):
        batch = draw(here, number)
        results = [
            t.step(batch, str(tmp_path / f"{number}-{n}")) for n, t in enumerate((here, there))
        ]
        assert results[0].digest == results[1].digest
        assert results[0].metrics["gradient/norm"] == results[1].metrics["gradient/norm"]
    held = [make(mode, max_step_kl=1e-9, offload_optimizer=offload) for offload in (False, True)]
    digests = [t.step(batch, str(tmp_path / f"held-{n}")).digest for n, t in enumerate(held)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_gradients_do_not_depend_on_the_micro_batches(
    make: Make, draw: Draw, tmp_path: Path, mode: str
) -> None:
    """To 1e-6 in float64: one pass that is scored and trained at once, many passes, single rows."""
    made = {n: make(mode, micro_tokens=n, dtype="float64", clip_grad=1e9) for n in (10_000, 40, 1)}
    batch = draw(made[40], 7, 9)
    for n, trainer in made.items():
        trainer.step(batch, str(tmp_path / str(n)))
    expected = gradients(made[1])
    assert expected.norm() > 0
    for n in (10_000, 40):
        assert (gradients(made[n]) - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize(
    ("mode", "name"),
    [("full", "qwen3"), ("full", "llama"), ("full", "gemma"), ("full-bf16", "qwen3")],
)
def test_full_weights_are_loaded_by_transformers(
    make: Make, draw: Draw, family: Callable[[str], str], tmp_path: Path, mode: str, name: str
) -> None:
    made = make(mode, name)
    batch = draw(made, 0)
    made.step(batch, str(tmp_path / "policy"))
    assert {p.name for p in (tmp_path / "policy").iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "optimizer.state", "tokenizer.json",
        "trainer.json",
    }  # fmt: skip
    assert weight_files(tmp_path / "policy") == ("model.safetensors",)
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "policy", dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), "nothing is missing, nothing is left over"
    assert loaded.dtype is made.causal.dtype
    assert loaded.config.tie_word_embeddings == (name != "llama")
    fresh = AutoModelForCausalLM.from_pretrained(family(name))
    assert not loaded.get_input_embeddings().weight.equal(fresh.get_input_embeddings().weight)
    for (n, ours), (m, theirs) in zip(
        sorted(made.causal.named_parameters()), sorted(loaded.named_parameters()), strict=True
    ):
        assert n == m
        assert ours.equal(theirs), n
    numbers = sum(p.numel() for p in loaded.parameters())
    sizes = {
        n: (tmp_path / "policy" / n).stat().st_size / numbers
        for n in ("model.safetensors", "optimizer.state")
    }
    expected = {"model.safetensors": 4, "optimizer.state": 8} if mode == "full" else {
        "model.safetensors": 2, "optimizer.state": 12
    }  # fmt: skip
    assert sizes == pytest.approx(expected, rel=0.25), (
        "as docs/guides/memory.md says; headers are the rest"
    )
    if mode == "full":
        s = batch[0]
        ids = torch.tensor(np.concatenate([s.prompt_ids, s.response_ids]), dtype=torch.long)
        with torch.no_grad():
            logp = torch.log_softmax(
                loaded.eval()(input_ids=ids[None]).logits[0].double() / s.temperature, -1
            )
        theirs = logp[len(s.prompt_ids) - 1 : -1].gather(-1, ids[len(s.prompt_ids) :, None])[:, 0]
        torch.testing.assert_close(
            theirs, made.logprobs([row_of(s)])[0].double(), atol=1e-5, rtol=0
        )


def test_full_weights_without_optimizer_state_are_resumed(
    make: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = make("full-bf16")
    folder = made.step(draw(made, 0), str(tmp_path / "policy")).folder
    stood = trained(made)
    (tmp_path / "policy" / "optimizer.state").unlink()
    other = make("full-bf16", learning_rate=1e-9)
    other.load(folder=folder, method_state={})
    assert "the optimizer starts from the beginning" in caplog.text
    assert trained(other).equal(stood)
    other.step(draw(made, 1), str(tmp_path / "next"))
    assert trained(other).equal(stood), (
        "a step of a billionth is a billionth, from these weights on"
    )


def test_an_adapter_is_float32_on_a_half_precision_base(
    make: Make, draw: Draw, tmp_path: Path
) -> None:
    made = make("lora-bf16")
    kinds = {n: p.dtype for n, p in made.model.named_parameters()}
    assert {d for n, d in kinds.items() if "lora_" in n} == {torch.float32}
    assert {d for n, d in kinds.items() if "lora_" not in n} == {torch.bfloat16}
    assert made.logprobs([row_of(draw(made, 0)[0])])[0].dtype is torch.float32
    twin, batch = make("lora"), draw(made, 0)
    for n, t in enumerate((made, twin)):
        t.step(batch, str(tmp_path / str(n)))
    moved = [trained(t) - trained(make("lora")) for t in (made, twin)]
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.8


def test_an_adapter_on_4_bits_equals_one_on_the_dequantized_base(
    make: Make, draw: Draw, family: Callable[[str], str], tmp_path: Path
) -> None:
    """The gradient through real bitsandbytes layers, against the same weights written out."""
    packed = make("qlora", clip_grad=1e9)
    from bitsandbytes.functional import dequantize_4bit

    plain = AutoModelForCausalLM.from_pretrained(family("qwen3"), dtype=torch.float32)
    weights, quantized = dict(plain.named_parameters()), 0
    for name, module in packed.model.get_base_model().named_modules():
        state = getattr(getattr(module, "base_layer", None), "weight", None)
        if state is not None:
            whole = dequantize_4bit(state.data, state.quant_state)
            assert not whole.equal(weights[f"{name}.weight"]), "four bits are not sixteen"
            weights[f"{name}.weight"].data.copy_(whole)
            quantized += 1
    assert quantized == 14
    plain.save_pretrained(tmp_path / "plain")
    written = make("lora", path=str(tmp_path / "plain"), clip_grad=1e9)
    batch = draw(written, 0)
    for n, trainer in enumerate((packed, written)):
        trainer.step(batch, str(tmp_path / str(n)))
    expected = gradients(written)
    assert (gradients(packed) - expected).norm() <= 1e-5 * expected.norm()
    sixteen = make("lora", clip_grad=1e9)
    sixteen.step(batch, str(tmp_path / "sixteen"))
    assert (gradients(sixteen) - expected).norm() > 1e-2 * expected.norm(), "it is another base"


def test_the_engine_gap_measures_quantization(make: Make, draw: Draw, tmp_path: Path) -> None:
    """The engine samples from sixteen bits: what that makes is measured, not guessed."""
    engine, batch = make("lora"), draw(make("lora"), 0, on_policy=True)
    same = engine.step(batch, str(tmp_path / "16")).metrics["gap/engine"]
    packed = make("qlora").step(batch, str(tmp_path / "4")).metrics["gap/engine"]
    assert same < 1e-5 < 1e-2 < packed


def test_quantization_without_its_library_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        ConfigError, match=r"needs bitsandbytes, .* Install \"openclaw-rl\[qlora\]\""
    ):
        make("qlora")


def test_contradicting_settings_are_refused(make: Make, draw: Draw, tmp_path: Path) -> None:
    adapter, whole = make("lora"), make("full")
    folders = [
        t.step(draw(t, 0), str(tmp_path / str(n))).folder for n, t in enumerate((adapter, whole))
    ]
    with pytest.raises(ConfigError, match=r"train\.finetune full, but the settings say lora"):
        adapter.load(folder=folders[1], method_state={})
    with pytest.raises(ConfigError, match=r"train\.finetune lora, but the settings say full"):
        whole.load(folder=folders[0], method_state={})


def test_full_weights_that_do_not_fit_or_are_incomplete_are_refused(
    make: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, other = make("full"), make("full", "llama")
    assert "train.optimizer.learning_rate 0.001 suits adapters" in caplog.text
    policy = tmp_path / "policy"
    made.step(draw(made, 0), str(policy))
    before = trained(other)
    with pytest.raises(ModelError, match="do not fit the base model"):
        other.load(folder=str(policy), method_state={})
    assert trained(other).equal(before)
    raw = (policy / "model.safetensors").read_bytes()
    (policy / "model.safetensors").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ModelError, match="cannot be loaded"):
        made.load(folder=str(policy), method_state={})
    (policy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="were pruned"):
        made.load(folder=str(policy), method_state={})
    shutil.rmtree(policy)
    with pytest.raises(ModelError, match="cannot be loaded"):
        made.load(folder=str(policy), method_state={})


def test_a_base_with_a_missing_weight_is_refused(
    make: Make, family: Callable[[str], str], tmp_path: Path
) -> None:
    """transformers would make it up."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(family("llama"), tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(
        ModelError,
        match=r"1 weights are missing in its files \(the first: model\.layers\.1\.mlp\.up_proj",
    ):
        make("full", path=str(tmp_path / "base"))
