"""Benchmark the trainer on a GPU: tokens/s, MFU and peak memory of a step, for Qwen3 shapes with random weights.

    python benchmarks/gpu.py [--minutes 9] [--out FOLDER]       # a GPU
    python benchmarks/gpu.py --cpu --tiny                       # the same code on a CPU

A step is forward and backward passes, the loss and the optimizer: eight turns of one session as one prefix tree of
4K, 16K or 32K tokens, a quarter of them replies. "whole step" is the trainer's whole step on the same turns: the
policy before, the frozen base, the step, the policy after it, and the folder on disk. MFU counts the operations that
the step needs (benchmarks/flops.py), without recomputation and without gradients of frozen weights. "by 6N" counts an
adapter's step as if all weights were trained, as other tables do. Memory is the peak that torch allocated; "formula"
is the expected peak in GiB. "recomputed" is the number of layers recomputed in the backward pass: all, or by default
as many as the memory of this device requires.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

import flops
import qwen3
from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.loss.policy_loss import TermSlice, make_loss_config, micro_batch_loss
from openclaw_rl.learner.model import weights
from openclaw_rl.learner.optim.optimizer import Optimizer
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import ModelConfig, TrainConfig, train_settings

RESULTS = Path(__file__).parent / "results" / "gpu.md"
HEAD = (
    "| model | trained | tokens | recomputed | s/step | tokens/s | MFU | by 6N | peak GiB | formula | whole step, s |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
LENGTHS = (4096, 16384, 32768)
MODES: tuple[flops.Mode, ...] = ("lora", "qlora", "full")
REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is measured."""

    model: str
    mode: flops.Mode
    tokens: int
    checkpointing: bool | None
    offload: bool = False
    compiled: bool = False

    @property
    def trained(self) -> str:
        return {"lora": "LoRA", "qlora": "QLoRA", "full": "full"}[self.mode] + (
            ", offloaded" if self.offload else ""
        )

    def settings(self) -> TrainConfig:
        """No trust region: how often it halves a step is no matter of speed. Steps that move nothing far."""
        return train_settings(
            {
                "method": "binary",
                "finetune": "full" if self.mode == "full" else "lora",
                "base_quantization_bits": 4 if self.mode == "qlora" else 16,
                "optimizer.offload": self.offload,
                "optimizer.learning_rate": 1e-6,
                "gradient_checkpointing": self.checkpointing,
                "compile": self.compiled,
                "batch.micro_tokens": self.tokens + 1,
                "safety.max_turn_log_ratio": 1e9,
                "safety.max_step_kl": 1e9,
                "loss.token_ratio_min": 1e-9,
                "loss.token_ratio_max": 1e9,
                "threads": torch.get_num_threads(),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of a cell. None: not measured; `note` says why."""

    cell: Cell
    seconds: float | None = None
    bytes: int | None = None
    whole: float | None = None
    flex: bool | None = None
    again: int | None = None  # layers
    compiled: bool | None = None
    note: str = ""


# --------------------------------------------------------------------------------------- measuring


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


class Stand:
    """One model with what is trained in it, ready for steps of any length."""

    def __init__(self, path: str, cell: Cell, device: torch.device) -> None:
        self._train = cell.settings()
        self.weights = weights.make_weights(
            path, self._train, ModelConfig(path=path, device=str(device))
        )
        self.optimizer = Optimizer(self.weights.parameters, self._train)
        self.optimizer.start()
        self.weights.model.eval()
        self.passes = ForwardRunner(
            self.weights.causal,
            micro_tokens=self._train.batch.micro_tokens,
            compiled=self._train.compile,
            checkpointing=self._train.gradient_checkpointing,
        )

    def step(self, rows: Sequence[TokenSequence]) -> None:
        """Forward, loss, backward, optimizer."""
        self.optimizer.zero_grad()
        # The trust region's way back: its memory belongs to a step.
        standing = self.optimizer.snapshot()
        logp_K, _ = self.passes.forward(rows)
        old_K = logp_K.detach()
        ones_K = torch.ones_like(old_K)
        term = TermSlice(
            name="binary",
            weight=1.0,
            advantages_K=ones_K,
            mask_K=ones_K.bool(),
            denominator=float(len(old_K)),
        )
        loss = micro_batch_loss(
            logp_K=logp_K,
            mu_K=old_K,
            base_K=old_K,
            terms=[term],
            kl_coef=0.1,
            kl_denominator=float(len(old_K)),
            config=make_loss_config(self._train),
            rows_K=torch.zeros_like(old_K, dtype=torch.long),
        )
        loss.total.backward()
        norm = self.optimizer.step(1e-6, wanted=True)
        assert norm > 0, "a step without a gradient"
        del standing


def measure(path: str, cell: Cell, device: torch.device) -> Measured:
    """Raises `torch.OutOfMemoryError`, and `ConfigError` where a library is missing."""
    rows = qwen3.session(qwen3.SHAPES[cell.model]["vocab_size"], cell.tokens)
    stand = Stand(path, cell, device)
    # Compiles, and makes the optimizer's state.
    stand.step(rows)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = statistics.median(timed(lambda: stand.step(rows), device) for _ in range(REPEATS))
    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    passes = stand.passes
    return Measured(
        cell=cell,
        seconds=seconds,
        bytes=held,
        flex=passes.uses_flex,
        compiled=passes.is_compiled,
        again=passes.recomputed_layers,
    )


def whole(path: str, cell: Cell, device: torch.device, scratch: Path) -> float:
    """Seconds of the second `LocalTrainer.step`."""
    batch = qwen3.samples(qwen3.session(qwen3.SHAPES[cell.model]["vocab_size"], cell.tokens))
    method = make_method(train_settings({"method": "binary"}))
    trainer = LocalTrainer(
        path, method, cell.settings(), ModelConfig(path=path, device=str(device))
    )
    found = 0.0
    for n in range(2):
        out = tempfile.mkdtemp(dir=scratch) + f"/{n}"
        found = timed(lambda to=out: trainer.step(batch, to), device)  # type: ignore[misc]
    return found


def attempt(
    path: str, cell: Cell, device: torch.device, scratch: Path, *, with_whole: bool
) -> Measured:
    """The cell, or why not."""
    try:
        found = measure(path, cell, device)
        collect()
        return replace(found, whole=whole(path, cell, device, scratch)) if with_whole else found
    except torch.OutOfMemoryError:
        return Measured(cell=cell, note="OOM")
    except ConfigError as error:
        return Measured(cell=cell, note=str(error).split(",")[0])
    except Exception as error:  # noqa: BLE001  one cell that fails must not cost the others: it is in the table
        return Measured(cell=cell, note=f"{type(error).__name__}: {error}".splitlines()[0][:160])
    finally:
        collect()


def collect() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def cells(model: str, lengths: Sequence[int], modes: Sequence[str]) -> Iterator[Cell]:
    """What matters most first: time may end."""
    ordered = sorted(lengths, key=lambda n: n != 16384)
    kinds: list[tuple[flops.Mode, bool | None, Sequence[int]]] = [
        ("lora", None, ordered),
        # The memory of a small GPU.
        ("lora", True, ordered),
        ("qlora", None, ordered),
        ("full", None, ordered),
    ]
    for mode, checkpointing, wished in kinds:
        for tokens in wished if mode in modes else ():
            yield Cell(model=model, mode=mode, tokens=tokens, checkpointing=checkpointing)


def run(given: argparse.Namespace, models: Sequence[str], lengths: Sequence[int], device: torch.device, scratch: Path
        ) -> Iterator[Measured]:  # fmt: skip
    """A full step that does not fit is tried once more with the optimizer in the CPU's memory."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    until = time.monotonic() + 60 * given.minutes
    for model in models:
        path = qwen3.save(model, scratch / model, device, dtype)
        collect()
        for cell in cells(model, lengths, given.trained):
            if time.monotonic() > until:
                yield Measured(cell=cell, note="no time left")
                continue
            middle = cell.tokens == sorted(lengths)[len(lengths) // 2]
            with_whole = (
                given.whole and cell.mode == "lora" and cell.checkpointing is None and middle
            )
            cell = replace(cell, compiled=given.compile)
            found = attempt(path, cell, device, scratch, with_whole=with_whole)
            yield found
            if found.note == "OOM" and cell.mode == "full" and time.monotonic() < until:
                yield attempt(path, replace(cell, offload=True), device, scratch, with_whole=False)


# ----------------------------------------------------------------------------------------- telling


def row(found: Measured, peak: float | None) -> str:
    cell = found.cell
    shape = qwen3.SHAPES[found.cell.model]
    work = flops.work_of(qwen3.session(shape["vocab_size"], cell.tokens))
    again = "all" if cell.checkpointing else "-" if found.again is None else f"{found.again}"
    start = f"| {cell.model} | {cell.trained} | {cell.tokens} | {again} |"
    expected = f"{flops.memory(shape, cell.tokens, cell.mode) / flops.GIB:.1f}"
    expected = "-" if cell.offload or not cell.checkpointing else expected
    if found.seconds is None:
        return f"{start} {found.note} | | | | | {expected} | |"

    def share(mode: flops.Mode) -> str:
        return (
            "-" if peak is None else f"{flops.flops(shape, work, mode) / found.seconds / peak:.1%}"
        )

    held = "-" if found.bytes is None else f"{found.bytes / flops.GIB:.1f}"
    took = "" if found.whole is None else f"{found.whole:.2f}"
    return (
        f"{start} {found.seconds:.3f} | {cell.tokens / found.seconds:.0f} | {share(cell.mode)} | {share('full')} "
        f"| {held} | {expected} | {took} |"
    )


def page(
    device_name: str, peak: float | None, found: Sequence[Measured], rows: Sequence[str]
) -> str:
    ways = [f.compiled for f in found if f.compiled is not None]
    layers = "compiled" if any(ways) else "interpreted"
    teraflops = "unknown: no MFU" if peak is None else f"{peak / 1e12:.0f} TFLOP/s"
    text = (__doc__ or "").split("\n\n", 2)
    return "\n".join(
        [
            text[0],
            "",
            f"{device_name}, torch {torch.__version__}, peak in bfloat16 {teraflops}, layers {layers}.",
            "",
            *HEAD,
            *rows,
            "",
            text[2],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="no new measurement begins after that"
    )
    parser.add_argument(
        "--models", nargs="+", default=["4B", "1.7B", "0.6B"], choices=list(qwen3.SHAPES)
    )
    parser.add_argument("--trained", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument(
        "--peak", type=float, help="TFLOP/s in bfloat16 of a device that is not in the table"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for gpu.md and gpu.json; default: benchmarks/results"
    )
    parser.add_argument(
        "--compile", action="store_true", help="compile layers: a minute or two for each model"
    )
    parser.add_argument(
        "--no-whole", dest="whole", action="store_false", help="leave whole steps out"
    )
    parser.add_argument("--cpu", action="store_true", help="measure this machine's CPU")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and short sessions: to see the code run"
    )
    given = parser.parse_args()
    if not given.cpu and not torch.cuda.is_available():
        sys.exit(
            "gpu-bench: torch sees no GPU here. On a CPU: python benchmarks/gpu.py --cpu --tiny"
        )
    logging.basicConfig(level=logging.WARNING)
    transformers_logging.disable_progress_bar()
    # As the trainer does; see compiled.compile_parts.
    torch.set_num_threads(torch.get_num_threads())
    device = torch.device("cpu" if given.cpu else "cuda")
    name = "CPU" if given.cpu else torch.cuda.get_device_name(device)
    peak = 1e12 * given.peak if given.peak else flops.peak_of(name)
    models, lengths = (["tiny"], [64, 128]) if given.tiny else (given.models, given.lengths)
    found = []
    rows = []
    print(*HEAD, sep="\n", flush=True)
    target = (given.out or RESULTS.parent) / "gpu.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for measured in run(given, models, lengths, device, Path(place)):
            found.append(measured)
            rows.append(row(measured, peak))
            print(rows[-1], flush=True)
            target.write_text(page(name, peak, found, rows), encoding="utf-8")
            target.with_suffix(".json").write_text(
                json.dumps([asdict(f) for f in found], indent=1), encoding="utf-8"
            )


if __name__ == "__main__":
    main()
