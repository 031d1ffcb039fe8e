"""Run rollouts concurrently, each in its own conversation, with one result file each."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp

from openclaw_rl.errors import OpenClawError
from openclaw_rl.rollouts.function import TASKS, Entry
from openclaw_rl.rollouts.policy_client import Model
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import ready
from openclaw_rl.supervisor.supervisor import read_key

log = logging.getLogger("openclaw_rl.rollouts")
_PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Text of a task, and further arguments by name."""

    words: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one rollout."""

    session: str
    file: Path
    replies: int
    error: str | None


def read_tasks(path: Path) -> list[Task]:
    """Read a JSON list or JSON lines (strings, or objects with a key of `TASK_KEYS`), or plain lines of text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpenClawError(f"{path}: the tasks cannot be read ({error})") from None
    found: Iterable[Any] = [line for line in text.splitlines() if line.strip()]
    if path.suffix in (".json", ".jsonl"):
        try:
            found = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in found]
        except (ValueError, RecursionError) as error:
            raise OpenClawError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(found, list) or not found:
        raise OpenClawError(f"{path}: expected a list of tasks, got {_kind(found)}")
    return [_task(one, path, number) for number, one in enumerate(found, 1)]


def _kind(found: Any) -> str:
    return "none" if found == [] else type(found).__name__


def _task(one: Any, path: Path, number: int) -> Task:
    if isinstance(one, str):
        return Task(words=one)
    words = next((one[key] for key in TASKS if isinstance(one.get(key), str)), None) if isinstance(one, dict) else None
    if words is None:
        raise OpenClawError(f"{path}: task {number}: expected a string, or an object with `task`, got {one!r}")
    return Task(words=words, more={key: value for key, value in one.items() if key not in TASKS})


async def run(
    config: Config,
    tasks: Sequence[Task],
    out: Path,
    *,
    num: int | None = None,
    seen: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run `num` rollouts, cycling through the tasks; default: each task `rollout.per_prompt` times.

    Writes a result file each to `out`. Raises `OpenClawError` if no gateway answers, `PluginError` for a bad file.
    """
    entry, url = Entry(config), f"http://{config.serve.host}:{config.serve.port}"
    if not await asyncio.to_thread(ready, url):
        raise OpenClawError(f"{url}: no gateway is ready there. Start one with `openclaw-rl up`, or set --port.")
    rollout = config.rollout
    gate = asyncio.Semaphore(max(rollout.workers, rollout.parallel_envs))
    try:
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise OpenClawError(
            f"{out}: the folder for the results cannot be created ({error.strerror}). Set another with --out."
        ) from None
    wanted = [task for task in tasks for _ in range(rollout.per_prompt)]
    chosen = wanted if num is None else list(islice(cycle(wanted), num))
    headers = {"Authorization": f"Bearer {read_key(config)}"}

    async with aiohttp.ClientSession(headers=headers, timeout=_PATIENCE) as http:

        async def one(task: Task) -> Outcome:
            async with gate:
                name, session = config.model.name, f"rollout-{uuid.uuid4().hex[:12]}"
                model = Model(http, url, name=name, session=session, most=rollout.max_turns)
                outcome = await _one(entry, model, task, out)
                seen(outcome)
                return outcome

        return list(await asyncio.gather(*(one(task) for task in chosen)))


async def _one(entry: Entry, model: Model, task: Task, out: Path) -> Outcome:
    """Run one rollout and write its file. A failure is written to the file and does not stop the others."""
    started, error, result = time.perf_counter(), None, None
    try:
        result = await entry.run(model, task.words, task.more, out)
    except OpenClawError as problem:
        error = str(problem)
        log.warning("%s: %s", model.session, error)
    told = {
        "session": model.session,
        "task": task.words,
        **task.more,
        "file": str(entry.plugin.path),
        "sha256": entry.plugin.sha256,
        "function": entry.name,
        "replies": model.replies,
        "seconds": round(time.perf_counter() - started, 3),
        **({"result": result} if error is None else {"error": error}),
    }
    file = out / f"{model.session}.json"
    text = json.dumps(told, indent=2, ensure_ascii=False)
    await asyncio.to_thread(file.write_text, text, "utf-8", "backslashreplace")  # a lone surrogate stays valid JSON
    return Outcome(session=model.session, file=file, replies=model.replies, error=error)
