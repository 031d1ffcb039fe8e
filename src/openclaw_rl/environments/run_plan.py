"""Plan of a run: its tasks in groups of episodes, with ids that are the same whenever the run is continued."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
# Settings of a run whose value is a digest.
_DIGESTS = ("tasks", "tools_config")
# In an id of a group; an id has at most 128.
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpisode:
    """One episode. `group` and `id`: as the gateway knows them."""

    task: EnvironmentTask
    group: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run: each task `epochs` times, in groups of `group_size` episodes, in an order that depends on `seed`."""

    name: str
    tasks: Sequence[EnvironmentTask]
    group_size: int
    epochs: int = 1
    seed: int = 0

    def list_episodes(self) -> Iterator[PlannedEpisode]:
        """Yield all episodes, group by group."""
        for epoch in range(self.epochs):
            order = list(self.tasks)
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            for task in order:
                group = f"{self.name}-{task.digest[:_DIGEST_CHARACTERS]}-{epoch}"
                for number in range(self.group_size):
                    yield PlannedEpisode(task=task, group=group, id=f"{group}-{number}")

    def count_episodes(self) -> int:
        return len(self.tasks) * self.epochs * self.group_size


def new_run_name() -> str:
    """Return a name for a run: the time and a random part."""
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def check_run_name(name: str) -> str:
    """Return the name. Raises `ConfigError` unless it can be part of an id."""
    if RUN_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"run {name!r}: expected 1 to 48 letters, digits, - and _, the first a letter or digit"
        )
    return name


def _describe_change(name: str, before: Any, now: Any) -> str:
    return name if name in _DIGESTS else f"{name}: {before or 'none'}, now {now or 'none'}"


def record_run(home: Path, plan: RunPlan, settings: Mapping[str, Any]) -> bool:
    """Record a run that begins; return whether it was begun before with the same settings.

    Raises `ConfigError` if a run of this name was begun with other settings.
    """
    file = home / "environments" / "runs" / f"{plan.name}.json"
    digests = hashlib.sha256(
        "".join(sorted(task.digest for task in plan.tasks)).encode()
    ).hexdigest()
    more = {"tasks": digests, "group": plan.group_size, "epochs": plan.epochs, "seed": plan.seed}
    entry = json.loads(json.dumps({**settings, **more}))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = sorted(name for name in {*entry, *before} if before.get(name) != entry.get(name))
        if changed:
            differences = "; ".join(
                _describe_change(name, before.get(name), entry.get(name)) for name in changed
            )
            raise ConfigError(
                f"run {plan.name} was begun with other settings ({differences}). Continue it with the same, or choose "
                "another --run"
            )
        return True
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(entry), encoding="utf-8")
    temporary.replace(file)
    return False
