"""Reads tasks from a file of JSON lines, and divides them into the train and the held-out split."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.environments.types import EnvironmentTask, TaskSplit
from openclaw_rl.errors import ConfigError

_SPLITS: tuple[TaskSplit, ...] = ("train", "held_out")
_NOT_CONTENT = frozenset({"id", "split", "oracle", "nop", "best"})
"""Fields that say how a task is used. They do not change its digest."""
# Characters.
_MAX_NAME = 200


def read_task_file(path: Path, held_out_share: float = 0.0) -> list[EnvironmentTask]:
    """Return the tasks of a file, one JSON object per line.

    `held_out_share`: share of the tasks without a `split` that are held out, chosen by their digest, so that a task
    stays in its split whatever else the file has. Raises `ConfigError`, with the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the tasks cannot be read ({error}). Set a file of JSON lines with --tasks"
        ) from None
    tasks: list[EnvironmentTask] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        task = _parse_task(line, f"{path}:{number}", held_out_share)
        for name in (f"id {task.id!r}", f"task {task.digest}"):
            if name in seen:
                raise ConfigError(
                    f"{path}:{number}: the same {name.split()[0]} as in line {seen[name]}. Remove one"
                )
            seen[name] = number
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"{path}: no tasks. Expected one JSON object per line")
    return tasks


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: is not valid JSON ({error}). Expected one object per line"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {type(data).__name__}")
    return data


def _is_task_name(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    return 0 < len(name) <= _MAX_NAME and name.isprintable()


def _parse_task(line: str, where: str, held_out_share: float) -> EnvironmentTask:
    data = _parse_object(line, where)
    digest = task_digest(data)
    split = data.get("split", split_by_digest(digest, held_out_share))
    if split not in _SPLITS:
        raise ConfigError(f"{where}: split: expected train or held_out, got {split!r}")
    name = data.get("id", f"task-{digest[:12]}")
    if not _is_task_name(name):
        raise ConfigError(
            f"{where}: id: expected a text of 1 to {_MAX_NAME} printable characters, got {name!r}"
        )
    best = data.get("best", 1.0)
    if not is_finite_number(best):
        raise ConfigError(
            f"{where}: best: expected the best reward as a number, got {repr(best)[:80]}"
        )
    return EnvironmentTask(id=name, digest=digest, split=split, data=data)


def is_finite_number(value: Any) -> bool:
    """Return whether a value can be a reward: a number that is neither infinite nor larger than any float."""
    try:
        return (
            not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        )
    except OverflowError:
        # An integer.
        return False


def task_digest(data: Mapping[str, Any]) -> str:
    """Return the digest of a task's content."""
    content = {name: value for name, value in data.items() if name not in _NOT_CONTENT}
    canonical = json.dumps(content or {"id": data.get("id")}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def split_by_digest(digest: str, held_out_share: float) -> TaskSplit:
    """Return the split of a task: held out for this share of all digests."""
    drawn = (
        int.from_bytes(hashlib.sha256(f"held out {digest}".encode()).digest()[:8], "big") / 2**64
    )
    return "held_out" if drawn < held_out_share else "train"
