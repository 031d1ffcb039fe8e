"""Result of an episode as a program writes it: a number, or an object with the reward and its parts."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.environments.types import PlayOutcome, void_outcome

_MAX_REWARD_BYTES = 1 << 20


def parse_reward(raw: bytes, reason: str | None = None) -> PlayOutcome:
    """Return the outcome that a reward file gives: a number, or `{"reward", "parts", "steps", "status", "reason"}`.

    Raises `ValueError`.
    """
    body = _parse_body(raw)
    if body.get("reason") is not None:
        reason = str(body["reason"])
    match body.get("status", "done"):
        case "done":
            return _done_outcome(body, reason)
        case "void":
            return void_outcome(reason or "the program said so")
        case status:
            raise ValueError(f"status: expected done or void, got {str(status)[:80]!r}")


def _done_outcome(body: Mapping[str, Any], reason: str | None) -> PlayOutcome:
    parts = body.get("parts") or {}
    steps = body.get("steps") or []
    if not isinstance(parts, dict) or not isinstance(steps, list):
        raise ValueError("parts: expected an object of numbers; steps: a list of objects")
    reward = _finite_number("reward", body.get("reward"))
    part_rewards = {name: _finite_number(f"parts.{name}", value) for name, value in parts.items()}
    step_rewards = [_parse_step(f"steps[{number}]", step) for number, step in enumerate(steps)]
    return PlayOutcome(
        status="done",
        reward=reward,
        parts=part_rewards,
        steps=step_rewards,
        reason=reason,
    )


def _parse_body(raw: bytes) -> dict[str, Any]:
    """Return the fields of a reward file. A number alone is the field `reward`."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(content, dict):
        return {"reward": content}
    unknown = sorted(content.keys() - {"reward", "parts", "steps", "status", "reason"})
    if unknown:
        raise ValueError(
            f"unknown fields {unknown}. Known are reward, parts, steps, status and reason"
        )
    return content


def _parse_step(name: str, step: Any) -> dict[str, Any]:
    """Return the reward of a step, with its turn or its index."""
    fields = step if isinstance(step, dict) else {}
    reward = _finite_number(f"{name}.reward", fields.get("reward"))
    match fields:
        case {"turn": str(turn), "reward": _} if len(fields) == 2:
            return {"turn": turn, "reward": reward}
        case {"index": int(index), "reward": _} if len(fields) == 2 and _is_index(index):
            return {"index": index, "reward": reward}
    raise ValueError(
        f'{name}: expected {{"turn" or "index" (from 0), "reward"}}, got {str(step)[:80]}'
    )


def _is_index(value: int) -> bool:
    return not isinstance(value, bool) and value >= 0


def _finite_number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        # An integer that is larger than any float.
        pass
    raise ValueError(f"{name}: expected a finite number, got {str(value)[:80]}")


def read_reward_file(path: Path) -> bytes:
    """Return the content of a file that is no link, pipe or device. Raises `OSError`, also for a large one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("expected a regular file")
        raw = file.read(_MAX_REWARD_BYTES + 1)
    if len(raw) > _MAX_REWARD_BYTES:
        raise OSError(f"expected at most {_MAX_REWARD_BYTES} bytes")
    return raw
