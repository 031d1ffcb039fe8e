"""Processor time of a training step and of decoding, beside a matrix product; a process of its own for `quick.py`.

    python -m benchmarks.quick_child --folder MODEL --rounds 5 [--plant step --loss 0.3]

Prints JSON: the processor seconds of each round. Model and turns are those of `benchmarks/trainer.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from benchmarks.trainer import VOCABULARY, ours, samples

from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import SequenceFailed
from openclaw_rl.settings.load import EngineConfig, ModelConfig
from openclaw_rl.types import Sampling

TURNS = "4 turns"
REPLIES, PROMPT_TOKENS, REPLY_TOKENS = 8, 64, 64
PRODUCT_SIZE, PRODUCTS = 768, 12


def make_product() -> Callable[[], None]:
    """Return the yardstick: products of two matrices [768, 768] in float32."""
    generator = torch.Generator().manual_seed(0)
    left = torch.rand(PRODUCT_SIZE, PRODUCT_SIZE, generator=generator)
    right = torch.rand(PRODUCT_SIZE, PRODUCT_SIZE, generator=generator)

    def multiply() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, right)

    return multiply


def make_decode(folder: Path) -> Callable[[], None]:
    """Return the decoding of eight replies of 64 tokens at once."""
    model = EmbeddedModel.load(ModelConfig(path=str(folder)))
    engine = EmbeddedEngine(model, EngineConfig())
    rng = np.random.default_rng(0)

    def decode() -> None:
        for place in range(REPLIES):
            prompt = rng.integers(0, VOCABULARY, PROMPT_TOKENS).astype(np.int32)
            engine.generate(None, 0, prompt, Sampling(max_tokens=REPLY_TOKENS, seed=place), stop=())
        while engine.has_work:
            failed = [event for event in engine.step() if isinstance(event, SequenceFailed)]
            if failed:
                raise RuntimeError(failed[0].reason)

    return decode


def processor_seconds(work: Callable[[], None], loss: float) -> float:
    """Return the processor time of the work. `loss`: share of it that is lost in addition."""
    began = time.process_time()
    work()
    until = time.process_time() + loss * (time.process_time() - began)
    while time.process_time() < until and loss:
        pass
    return time.process_time() - began


def main() -> None:
    """Measure, in rounds, each piece of work next to the yardstick."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["step", "decode"])
    parser.add_argument("--plant", default="")
    parser.add_argument("--loss", type=float, default=0.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    product = make_product()
    work: dict[str, Callable[[], None]] = {}
    if options.only != "decode":
        work["step"] = ours(options.folder, samples(TURNS))
    if options.only != "step":
        work["decode"] = make_decode(options.folder)
    for first in (product, *work.values()):
        first()
    seconds: dict[str, list[float]] = {"product": [], **{name: [] for name in work}}
    for _ in range(options.rounds):
        for name, one in work.items():
            seconds["product"].append(processor_seconds(product, 0.0))
            loss = options.loss if options.plant == name else 0.0
            seconds[name].append(processor_seconds(one, loss))
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
