"""Result of an episode as a program writes it: a number, or an object with the reward and its parts."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from openclaw_rl.environments.types import PlayOutcome, void_outcome

_MAX_REWARD_BYTES = 1 << 20


def parse_reward(raw: bytes, reason: str | None = None) -> PlayOutcome:
    """Return the outcome that a reward file gives: a number, or `{"reward", "parts", "steps", "status", "reason"}`.

    Raises `ValueError`.
    """
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    body: dict[str, Any] = found if isinstance(found, dict) else {"reward": found}
    unknown = sorted(body.keys() - {"reward", "parts", "steps", "status", "reason"})
    if unknown:
        raise ValueError(f"unknown fields {unknown}. Known are reward, parts, steps, status and reason")
    reason = str(body["reason"]) if body.get("reason") is not None else reason
    if body.get("status", "done") == "void":
        return void_outcome(reason or "the program said so")
    parts, steps = body.get("parts") or {}, body.get("steps") or []
    if not isinstance(parts, dict) or not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("parts: expected an object of numbers; steps: a list of objects")
    return PlayOutcome(
        status="done",
        reward=_finite_number("reward", body.get("reward")),
        parts={name: _finite_number(f"parts.{name}", value) for name, value in parts.items()},
        steps=steps,
        reason=reason,
    )


def _finite_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(value)


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
