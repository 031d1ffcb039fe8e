"""Run rollouts concurrently, each in its own conversation, with one result file each."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.errors import OpenClawError
from openclaw_rl.rollouts.function import TASK_KEYS, RolloutFunction
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import is_ready
from openclaw_rl.supervisor.supervisor import read_key

log = logging.getLogger("openclaw_rl.rollouts")
_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTask:
    """Text of a task, and further arguments by name."""

    text: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOutcome:
    """Result of one rollout."""

    session: str
    file: Path
    replies: int
    error: str | None


def read_tasks(path: Path) -> list[RolloutTask]:
    """Read a JSON list or JSON lines (strings, or objects with a key of `TASK_KEYS`), or plain lines of text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpenClawError(f"{path}: the tasks cannot be read ({error})") from None
    try:
        entries = _parse_entries(text, path.suffix)
    except (ValueError, RecursionError) as error:
        raise OpenClawError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(entries, list) or not entries:
        kind = "none" if entries == [] else type(entries).__name__
        raise OpenClawError(f"{path}: expected a list of tasks, got {kind}")
    return [_parse_task(one, path, number) for number, one in enumerate(entries, 1)]


def _parse_entries(text: str, suffix: str) -> Any:
    """Return the content of a file of tasks, by its suffix. Raises `ValueError`, `RecursionError` for damaged JSON."""
    if suffix == ".json":
        return json.loads(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    return lines


def _parse_task(one: Any, path: Path, number: int) -> RolloutTask:
    if isinstance(one, str):
        return RolloutTask(text=one)
    fields = one if isinstance(one, dict) else {}
    texts = [fields[key] for key in TASK_KEYS if isinstance(fields.get(key), str)]
    if not texts:
        raise OpenClawError(
            f"{path}: task {number}: expected a string, or an object with `task`, got {one!r}"
        )
    more = {key: value for key, value in fields.items() if key not in TASK_KEYS}
    return RolloutTask(text=texts[0], more=more)


async def run_rollouts(
    config: Config,
    tasks: Sequence[RolloutTask],
    out: Path,
    *,
    num: int | None = None,
    seen: Callable[[RolloutOutcome], None] = lambda outcome: None,
) -> list[RolloutOutcome]:
    """Run `num` rollouts, cycling through the tasks; default: each task `rollout.per_prompt` times.

    Writes a result file each to `out`. Raises `OpenClawError` if no gateway answers, `PluginError` for a bad file.
    """
    entry = RolloutFunction(config)
    url = config.serve.url
    if not await asyncio.to_thread(is_ready, url, config.serve.api_key):
        raise OpenClawError(
            f"{url}: no gateway is ready there. Start one with `openclaw-rl up`, or name its --home."
        )
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

    async with open_http_session(headers=headers, timeout=_HTTP_TIMEOUT) as http:

        async def run_task(task: RolloutTask) -> RolloutOutcome:
            async with gate:
                name = config.model.name
                session = f"rollout-{uuid.uuid4().hex[:12]}"
                model = PolicyClient(http, url, name=name, session=session, most=rollout.max_turns)
                outcome = await _run_rollout(entry, model, task, out)
                seen(outcome)
                return outcome

        return list(await asyncio.gather(*(run_task(task) for task in chosen)))


async def _run_rollout(
    entry: RolloutFunction, model: PolicyClient, task: RolloutTask, out: Path
) -> RolloutOutcome:
    """Run one rollout and write its file. A failure is written to the file and does not stop the others."""
    started = time.perf_counter()
    error = None
    result = None
    log.debug("%s: %s of %s starts", model.session, entry.name, entry.plugin.path)
    try:
        result = await entry.run(model, task.text, task.more, out)
    except OpenClawError as problem:
        error = str(problem)
        log.warning("%s: %s", model.session, error)
    record = {
        "session": model.session,
        "task": task.text,
        **task.more,
        "file": str(entry.plugin.path),
        "sha256": entry.plugin.sha256,
        "function": entry.name,
        "replies": model.replies,
        "seconds": round(time.perf_counter() - started, 3),
        **({"result": result} if error is None else {"error": error}),
    }
    log.debug("%s: ended after %d replies, %.2f s", model.session, model.replies, record["seconds"])
    file = out / f"{model.session}.json"
    text = json.dumps(record, indent=2, ensure_ascii=False)
    # A lone surrogate stays valid JSON.
    await asyncio.to_thread(file.write_text, text, "utf-8", "backslashreplace")
    return RolloutOutcome(session=model.session, file=file, replies=model.replies, error=error)
