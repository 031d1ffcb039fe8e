"""Rollout self-test: holds conversations with a temporary system and checks their trajectory files."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.errors import OpenClawError
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.trajectories.sessions import inspect_sessions

_QUESTIONS = ("What is the capital of France?", "What is 2 plus 3?", "What colour is snow?")
_REACTION = "Perfect, thanks!"
# Settings of the temporary system.
_KEPT = ("model", "engine", "run")
# Per reply.
_REPLY_TOKENS = 24
# Of the temporary system, printed at level debug.
_LOG_LINES = 10_000
PrintLine = Callable[[str], None]


def _kept_sections(config: Config) -> set[str]:
    section = engine_spec(config).section
    return {*_KEPT, section} if section else set(_KEPT)


def run_selftest(
    config: Config,
    out: Path,
    *,
    num: int,
    wait: float,
    print_progress: PrintLine,
    yes: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Hold `num` conversations of two prompts, each written to `out`. Returns what `inspect_sessions` finds there.

    Model and engine are those of the settings; home, port and key are temporary; nothing is trained.
    `yes`: as for `SubprocessSystem`; the yes is recorded in the home of `config`. At log level debug, `print_progress`
    gets the system's log.

    Raises `OpenClawError` if the system does not start, or a trajectory is missing, has no token ids or no reaction.
    """
    check_folder(out)
    with tempfile.TemporaryDirectory(prefix="openclaw-rl-selftest-") as folder:
        settings = config.model_dump(mode="json", include=_kept_sections(config), exclude_none=True)
        scratch = scratch_config(Path(folder), settings | {"data.export_dir": str(out.resolve())})
        system = SubprocessSystem(scratch, command="serve", owner=config, yes=yes)
        print_progress(
            f"starting a temporary system ({config.model.path}, {config.engine.backend})"
        )
        with system:
            names = asyncio.run(_hold_conversations(system, num))
            print_progress(f"{num} conversations held, {2 * num} replies")
            sessions = _wait_for_trajectories(out, names, wait)
        if config.run.log_level == "debug":
            print_progress(system.log_tail(_LOG_LINES))
    for name in names:
        _check_trajectory(name, sessions[name])
    return sessions


def check_folder(out: Path) -> None:
    """Raise `OpenClawError` if the folder for trajectories has something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OpenClawError(
            f"{out}: expected a new or an empty folder. Name another with --output-dir."
        )


async def _hold_conversations(system: SubprocessSystem, num: int) -> list[str]:
    """Hold conversations of a question and a reaction to its answer. Returns the session ids."""
    names = [f"selftest-{number}" for number in range(1, num + 1)]
    headers = {"Authorization": f"Bearer {system.api_key}"}
    async with open_http_session(headers=headers) as http:
        for number, name in enumerate(names):
            model = PolicyClient(
                http, system.base_url, name=system.config.model.name, session=name, most=2
            )
            for message in (_QUESTIONS[number % len(_QUESTIONS)], _REACTION):
                await model.generate(message, max_tokens=_REPLY_TOKENS)
    return names


def _wait_for_trajectories(
    out: Path, names: list[str], wait: float
) -> dict[str, list[dict[str, Any]]]:
    """Wait until each conversation has a file in the folder; return the sessions."""
    end = time.monotonic() + wait
    while True:
        sessions = (
            inspect_sessions(out, strict=False) if out.is_dir() and any(out.glob("*.json")) else {}
        )
        missing = [name for name in names if name not in sessions]
        if not missing:
            return sessions
        if time.monotonic() > end:
            raise OpenClawError(
                f"timed out after {wait:g} s waiting for {len(names)} trajectories in {out}; missing: "
                f"{', '.join(missing[:5])}. `openclaw-rl doctor` finds the failing stage."
            )
        time.sleep(0.2)


def _check_trajectory(name: str, turns: list[dict[str, Any]]) -> None:
    first = turns[0]
    missing = [
        key
        for key in ("prompt_ids", "response_ids", "logprobs", "next_state")
        if not first.get(key)
    ]
    if missing or first["type"] != "main":
        raise OpenClawError(
            f"{name}: expected a main turn with token ids, log-probabilities and its reaction, got a {first['type']} "
            f"turn without {', '.join(missing) or 'nothing'}. `openclaw-rl doctor` finds the failing stage."
        )
