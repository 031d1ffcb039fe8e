"""What runs on a GPU runs here on a CPU: the same code, tiny models. And what the formulas say of large ones."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.learner.test_trainer import Draw
from torch.optim.optimizer import register_optimizer_step_post_hook

from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import ModelConfig, train_settings

pytestmark = pytest.mark.system

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    out = {}
    for name in ("qwen3", "flops"):
        spec = importlib.util.spec_from_file_location(
            f"benchmark_{name}", BENCHMARKS / f"{name}.py"
        )
        assert spec
        assert spec.loader
        out[name] = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = out[name]  # dataclasses look their module up
        spec.loader.exec_module(out[name])
    return out


@pytest.mark.timeout(900)
def test_every_check_holds_on_a_cpu(tmp_path: Path) -> None:
    done = run("gpu_check.py", "--cpu", "--without", "system", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {f["name"] for f in found if f["passed"] is None} - {"step, QLoRA"} == {
        "FlexAttention", "copies aside", "replies without memory",
    }  # fmt: skip
    names = " ".join(f["name"] for f in found)
    for asked in (
        "tree against rows",
        "LM head",
        "resumed from the disk",
        "checkpointing",
        "engine against trainer",
    ):
        assert asked in names


@pytest.mark.timeout(900)
def test_the_benchmark_fills_its_table(tmp_path: Path) -> None:
    done = run("gpu.py", "--cpu", "--tiny", "--peak", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    quiet = [f for f in found if f["seconds"] is None]
    assert all(f["cell"]["mode"] == "qlora" and "bitsandbytes" in f["note"] for f in quiet), quiet
    assert {f["cell"]["mode"] for f in found if f["seconds"]} >= {"lora", "full"}
    assert any(f["whole"] for f in found)
    text = (tmp_path / "gpu.md").read_text()
    assert sum(line.startswith("| tiny") for line in text.splitlines()) == len(found) == 8
    assert {f["again"] for f in found if f["seconds"]} == {0, 2}, (
        "as memory asks for, or all layers"
    )
    assert "%" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", ["gpu.py", "gpu_check.py"])
def test_without_a_gpu_the_benchmark_says_so_in_one_line(script: str) -> None:
    done = run(script)
    assert done.returncode == 1
    # An installed bitsandbytes warns of its own missing kernels.
    lines = [line for line in done.stderr.strip().splitlines() if "kernels-community" not in line]
    assert len(lines) == 1
    assert "torch sees no GPU here" in lines[0]


@pytest.mark.parametrize(("name", "billions"), [("0.6B", 0.596), ("1.7B", 1.721), ("4B", 4.022)])
def test_shapes_match_the_models(
    modules: dict[str, ModuleType], name: str, billions: float
) -> None:
    shape = modules["qwen3"].SHAPES[name]
    model = modules["qwen3"].make(name, torch.device("meta"), torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=1e-3)
    layers = sum(
        m.weight.numel()
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and "layers" in n
    )
    assert modules["flops"].linear(shape) == layers


def test_the_counted_adapter_weights_match(modules: dict[str, ModuleType]) -> None:
    from peft import LoraConfig, get_peft_model

    model = modules["qwen3"].make("tiny", torch.device("cpu"), torch.float32)
    peft = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear")
    )
    trained = sum(p.numel() for p in peft.parameters() if p.requires_grad)
    assert modules["flops"].adapter(modules["qwen3"].SHAPES["tiny"]) == trained


def test_operations_match_the_count_of_torch(modules: dict[str, ModuleType]) -> None:
    """A full step by the model's own layers, on one row. They compute the whole square of pairs, seen or not."""
    from torch.utils.flop_counter import FlopCounterMode

    qwen3, flops = modules["qwen3"], modules["flops"]
    model, shape, length = (
        qwen3.make("tiny", torch.device("cpu"), torch.float32),
        qwen3.SHAPES["tiny"],
        96,
    )
    model.set_attn_implementation("eager")
    counter = FlopCounterMode(display=False)
    with counter:
        model(input_ids=torch.zeros(1, length, dtype=torch.long)).logits.sum().backward()
    work = flops.Work(tokens=length, asked=length, pairs=length * length)
    assert flops.flops(shape, work, "full") == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_session_has_the_requested_number_of_tokens(modules: dict[str, ModuleType]) -> None:
    rows = modules["qwen3"].session(500, 4096)
    work = modules["flops"].work_of(rows)
    assert (work.tokens, work.asked, work.pairs) == (4096, 1024, 4096 * 4097 // 2)


def test_a_4b_adapter_at_16k_is_expected_to_fit_into_24_gb(modules: dict[str, ModuleType]) -> None:
    """The formula's, of a step with checkpointing; what a GPU measures stands beside it in the table."""
    shape: dict[str, Any] = modules["qwen3"].SHAPES["4B"]
    assert modules["flops"].memory(shape, 16384, "lora") < 20e9
    assert modules["flops"].memory(shape, 16384, "qlora") < 16e9


def test_activation_bytes_of_a_layer_match_the_formula(modules: dict[str, ModuleType]) -> None:
    """Saved by autograd in one layer of the 4B shape under an adapter, attention's own inside left out."""
    from peft import LoraConfig, get_peft_model

    from openclaw_rl.learner.model import peft_adapter

    qwen3, flops = modules["qwen3"], modules["flops"]
    model = qwen3.make("4B", torch.device("meta"), torch.bfloat16)
    peft_adapter.patch_lora_dtype(
        get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear"))
    )
    tokens, layer = 512, model.model.layers[0]
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and tensor.shape[-2:] != (tokens, tokens):
            saved[storage._cdata] = storage.nbytes()
        return tensor

    states = torch.zeros(1, tokens, 2560, dtype=torch.bfloat16, device="meta", requires_grad=True)
    around = model.model.rotary_emb(states, torch.zeros(1, tokens, dtype=torch.long, device="meta"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(states, position_embeddings=around, attention_mask=None)
    per_token = sum(saved.values()) / tokens
    formula = flops.kept(qwen3.SHAPES["4B"])
    assert formula == pytest.approx(per_token, rel=0.25)


def bytes_of(shapes: set[torch.Size]) -> int:
    """Return the bytes of all living tensors, gradients included, of these shapes."""
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Parameter)  # not those of a compiler, which have no storage
    tensors = [found for found in gc.get_objects() if type(found) in kinds]
    tensors = [found for found in tensors if all(isinstance(n, int) for n in found.shape)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t.shape in shapes
    }
    return sum(storages.values())


@pytest.mark.parametrize(("finetune", "expected"), [("lora", 6 * 4), ("full", 2 * 2 + 4 * 4 + 4)])
def test_bytes_of_a_trained_weight_match_the_formula(
    tiny: str, draw: Draw, tmp_path: Path, finetune: str, expected: int
) -> None:
    """The last 4 of a whole model are its weights before the step, which are in CPU memory if a GPU trains."""
    train = train_settings({"method": "binary", "finetune": finetune, "lora": {"rank": 7}})
    made = LocalTrainer(tiny, make_method(train), train, ModelConfig(dtype="bfloat16"))
    matrices = [p for p in made._weights.parameters.values() if p.ndim == 2]
    shapes, count = (
        {matrix.shape for matrix in matrices},
        sum(matrix.numel() for matrix in matrices),
    )
    others = (
        bytes_of(shapes) - 8 * count
    )  # of earlier tests; this trainer has 8 a weight before its step
    found: list[int] = []
    hook = register_optimizer_step_post_hook(lambda *_: found.append(bytes_of(shapes) - others))
    made.step(draw(made, 0, reward=1.0), str(tmp_path / "policy"))
    hook.remove()
    assert found == [expected * count]
