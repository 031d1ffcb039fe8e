"""The policy version that a server has while another program updates its weights (`engine.weights: trainer`).

The program's adapter writes a file into the home; the gateway reads it. Standard library only, because the adapter runs
in the environment of the other program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE_NAME = "trainer_weights.json"


def start_record(home: Path, tag: str, folder: str | None, *, run: str, run_file: Path) -> None:
    """Record the weights with which a run of the trainer begins; tags of earlier runs mean nothing any more.

    `tag`: what the server calls them; `folder`: name of the version's folder, None for the base; `run_file`: JSON file
    whose `run` is the present one.
    """
    _write_record(home, {"run": run, "run_file": str(run_file), "weights": {tag: folder}})


def add_weights(home: Path, tag: str, folder: str) -> None:
    """Record further weights of the run."""
    record = _read_json(home / FILE_NAME)
    _write_record(home, record | {"weights": record["weights"] | {tag: folder}})


def read_weights(home: Path) -> dict[str, str | None]:
    """Return the folder name of each tag, None for the base; empty without a run, or when a new one has begun."""
    try:
        record = _read_json(home / FILE_NAME)
        is_present = _read_json(Path(record["run_file"]))["run"] == record["run"]
    except FileNotFoundError:
        return {}
    found: dict[str, str | None] = record["weights"] if is_present else {}
    return found


def _read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write_record(home: Path, record: dict[str, Any]) -> None:
    fresh = home / f".{FILE_NAME}"
    fresh.write_text(json.dumps(record), encoding="utf-8")
    fresh.replace(home / FILE_NAME)
