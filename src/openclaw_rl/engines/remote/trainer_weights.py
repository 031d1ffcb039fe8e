"""The policy version that a server has while another program updates its weights (`engine.weights: trainer`).

The program's adapter writes a file into the home; the gateway reads it. Standard library only, because the adapter runs
in the environment of the other program.
"""

from __future__ import annotations

import json
import os
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
    """Record further weights of the run. Raises `ValueError` if the record is damaged."""
    record = _read_json(home / FILE_NAME)
    _write_record(home, record | {"weights": _weights_of(home / FILE_NAME, record) | {tag: folder}})


def read_weights(home: Path) -> dict[str, str | None]:
    """Return the folder name of each tag, None for the base; empty without a run, or when a new one has begun.

    Raises `ValueError` if the record or the run's file is damaged.
    """
    try:
        record = _read_json(home / FILE_NAME)
        is_present = _read_json(Path(str(record.get("run_file", "")))).get("run") == record.get(
            "run"
        )
    except FileNotFoundError:
        return {}
    return _weights_of(home / FILE_NAME, record) if is_present else {}


def _weights_of(path: Path, record: dict[str, Any]) -> dict[str, str | None]:
    weights = record.get("weights")
    if not isinstance(weights, dict) or not all(
        folder is None or isinstance(folder, str) for folder in weights.values()
    ):
        raise _damaged(path, "it has no weights")
    return weights


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path, "it is no object")
    return value


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} cannot be read: {reason}. The trainer (engine.weights: trainer) writes it when it starts: restart it"
    )


def _write_record(home: Path, record: dict[str, Any]) -> None:
    fresh = home / f".{FILE_NAME}"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps(record))
        file.flush()
        # Else a power failure may leave it empty.
        os.fsync(file.fileno())
    fresh.replace(home / FILE_NAME)
