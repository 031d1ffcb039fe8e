"""What must hold on a GPU, in one call: attention, gradients, the head, a step of each kind, engine against trainer.

    python benchmarks/gpu_check.py [--out FOLDER] [--without system]     # a GPU
    python benchmarks/gpu_check.py --cpu                                 # the same checks on a CPU

Prints a table, writes gpu_check.json into FOLDER, and exits with 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from gpu_checks import CHECKS, Found, Place


def perform(name: str, place: Place) -> Iterator[Found]:
    """One after the other, each with the time it took."""
    began = time.perf_counter()
    try:
        for found in CHECKS[name](place):
            yield replace(found, seconds=time.perf_counter() - began)
            began = time.perf_counter()
    except Exception as error:  # noqa: BLE001  a check that dies has failed; the others still run
        words = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        seconds = time.perf_counter() - began
        yield Found(name=name, measured=words, expected="to end", passed=False, seconds=seconds)


def line(found: Found) -> str:
    verdict = {True: "ok", False: "FAILED", None: "not here"}[found.passed]
    return (
        f"| {found.name} | {found.measured} | {found.expected} | {verdict} | {found.seconds:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="on this machine's CPU")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--without", nargs="+", choices=list(CHECKS), default=[])
    parser.add_argument("--out", type=Path, help="folder for gpu_check.json")
    given = parser.parse_args()
    if not given.cpu and not torch.cuda.is_available():
        sys.exit(
            "gpu-check: torch sees no GPU here. On a CPU: python benchmarks/gpu_check.py --cpu"
        )
    # Of libraries about one another.
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers_logging.disable_progress_bar()
    found: list[Found] = []
    print("| check | measured | expected | | s |", "|---|---|---|---|---|", sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(device=torch.device("cpu" if given.cpu else "cuda"), scratch=Path(scratch))
        for name in given.only:
            if name not in given.without:
                for new in perform(name, place):
                    print(line(new), flush=True)
                    found.append(new)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(f) for f in found], indent=1)
        (given.out / "gpu_check.json").write_text(text, encoding="utf-8")
    failed = [f.name for f in found if f.passed is False]
    applied = sum(f.passed is not None for f in found)
    print(
        f"\n{applied - len(failed)} of {applied} hold"
        + (f"; these do not: {', '.join(failed)}" if failed else "")
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
