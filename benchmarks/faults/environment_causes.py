"""Causes of faults while episodes of environments are played: kills of runner, box, browser and gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.causes import Cause, FaultScene
from benchmarks.faults.client_log import EpisodeCut
from benchmarks.faults.clients import CrowdLoad
from benchmarks.faults.environment_load import EnvironmentLoad
from benchmarks.faults.live_system import FaultFinding, LiveSystem, wait_until
from sqlalchemy import select

from openclaw_rl.store import schema
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode

LOAD = CrowdLoad(users=1, pause=2.0, probe_pause=0.5)
SETTINGS: dict[str, Any] = {
    "train.method": "groups",
    "run.max_crashes": 1_000_000,
    "run.max_restart_delay": 1.0,
}
ROOT = Path(__file__).parents[2]
BROWSER_PYTHON = ROOT / ".browsergym-venv" / "bin" / "python"
"""Python with the library of browsers, as `make demo-gui` installs it."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Seconds until there is something to kill; runs of boxes and of browsers take turns.
_TARGET_WITHIN = 240.0
# Seconds after that.
_LONGEST_WAIT = 3.0
# Seconds from a kill until the episodes of that moment have ended.
_ENDED_WITHIN = 180.0
# A box may be killed when it is not needed any more, just before it is closed.
_LATE_SECONDS = 1.0
# Seconds until the gateway answers again.
_ANSWER_WITHIN = 60.0


def missing_browser() -> str | None:
    """Return why no browser can be killed here; None if it can."""
    if not BROWSER_PYTHON.exists():
        return "the library is not installed: `make demo-gui` installs it"
    return None if any(map(shutil.which, _BROWSERS)) else "there is no Chromium on PATH"


def browser_source() -> tuple[str, ...]:
    """Return the shipped web tasks, as arguments of `env run`."""
    return (f"browsergym:{ROOT / 'tasks' / 'web'}", "--python", str(BROWSER_PYTHON))


def load_of(scene: FaultScene) -> EnvironmentLoad:
    """Return the load of the plan, which must have one."""
    assert scene.environment is not None
    return scene.environment


async def during_episode(scene: FaultScene) -> list[str]:
    """Wait until an episode runs, then until a random moment."""
    load = load_of(scene)
    return await _wait_for_target(
        scene, lambda: bool(episodes_after(scene.live, load.run, time.time())), "episode"
    )


async def during_box(scene: FaultScene) -> list[str]:
    """Wait until a box is open, then until a random moment."""
    return await _wait_for_target(scene, lambda: bool(box_processes(load_of(scene))), "box")


async def during_browser(scene: FaultScene) -> list[str]:
    """Wait until a browser runs, then until a random moment."""
    return await _wait_for_target(scene, lambda: bool(browser_processes(load_of(scene))), "browser")


async def _wait_for_target(scene: FaultScene, is_there: Callable[[], bool], what: str) -> list[str]:
    if not await wait_until(is_there, _TARGET_WITHIN):
        return [f"no {what} within {_TARGET_WITHIN:g} s"]
    await asyncio.sleep(scene.rng.uniform(0.0, _LONGEST_WAIT))
    return []


def box_processes(load: EnvironmentLoad) -> list[int]:
    """Return the processes without any one of which a box ends."""
    return load.find_processes("bwrap ", "box_agent.sh")


def browser_processes(load: EnvironmentLoad) -> list[int]:
    """Return the browsers, without the processes that they start."""
    found = set(load.find_processes("chrom")) - set(
        load.find_processes("--type=", "crashpad", "driver")
    )
    return sorted(found)


@contextlib.asynccontextmanager
async def killed_runner(scene: FaultScene) -> AsyncIterator[None]:
    """SIGKILL of the runner. Nothing of it may be left before the next one starts."""
    load = load_of(scene)
    async with load.no_new_runner():
        at = await load.kill_runner()
        scene.log.cuts.append(EpisodeCut(process="runner", run=load.run, at=at))
        await load.check_clean("the runner was killed")
    yield


@contextlib.asynccontextmanager
async def killed_gateway(scene: FaultScene) -> AsyncIterator[None]:
    """SIGKILL of the gateway. The runner goes on."""
    load = load_of(scene)
    await scene.kill("gateway")
    scene.log.cuts.append(EpisodeCut(process="gateway", run=load.run, at=time.time()))
    yield


def killed_part(name: str, find: Callable[[EnvironmentLoad], list[int]]) -> Cause:
    """SIGKILL of a process that an episode needs: the episode is void, and the others go on."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        load = load_of(scene)
        if not await wait_until(lambda: _kill_one(find(load), scene.rng), _TARGET_WITHIN):
            raise FaultFinding(f"no {name} within {_TARGET_WITHIN:g} s")
        at = time.time()
        cut = await asyncio.to_thread(episodes_after, scene.live, load.run, at - _LATE_SECONDS)
        await _wait_for_void(scene.live, name, cut, at)
        yield

    return cause


def _kill_one(pids: list[int], rng: random.Random) -> bool:
    if not pids:
        return False
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


async def _wait_for_void(live: LiveSystem, name: str, ids: list[str], at: float) -> None:
    """Wait until the episodes have ended. Raises `FaultFinding` if one hangs, or none is void.

    An episode that ended just after the kill, at `at`, may have closed this box anyway.
    """
    read = lambda: [one for one in map(live.read_episode, ids) if one is not None]  # noqa: E731
    if not await wait_until(lambda: all(one.outcome is not None for one in read()), _ENDED_WITHIN):
        raise FaultFinding(f"an episode still runs {_ENDED_WITHIN:g} s after a {name} was killed")
    found = await asyncio.to_thread(read)
    is_late = any(
        (one.ended_at or 0.0) - at < _LATE_SECONDS for one in found if one.outcome == "done"
    )
    if found and not is_late and not any(one.outcome == "void" for one in found):
        raise FaultFinding(f"no episode is void after a {name} was killed")


def episodes_after(live: LiveSystem, run: str, at: float) -> list[str]:
    """Return the episodes of a run that run, or ended after `at`."""
    columns = schema.episodes.c
    with live.store.read() as conn:
        query = select(columns.id).where(columns.outcome.is_(None) | (columns.ended_at > at))
        return [id_ for id_ in conn.execute(query).scalars() if id_.startswith(f"{run}-")]


async def post_outcome_again(scene: FaultScene) -> list[str]:
    """Post the outcome of a random episode once more, and another outcome. Return what was wrong."""
    with scene.live.store.read() as conn:
        query = select(schema.episodes.c.id).where(schema.episodes.c.outcome.is_not(None))
        ids = sorted(conn.execute(query).scalars())
        episode = episodes.get_episode(conn, scene.rng.choice(ids)) if ids else None
    if episode is None:
        return []
    same = await asyncio.to_thread(_post_outcome, scene.live, episode.id, _outcome_body(episode))
    other = await asyncio.to_thread(
        _post_outcome, scene.live, episode.id, {"status": "done", "reward": 0.125}
    )
    if (same, other) == (200, 409):
        return []
    return [
        f"the outcome of {episode.id}, posted again, got {same}, and another one {other}. Expected 200 and 409"
    ]


def _outcome_body(episode: Episode) -> dict[str, Any]:
    body: dict[str, Any] = {"status": episode.outcome}
    if episode.reward is not None:
        steps = [
            {k: v for k, v in (("turn", s.turn), ("index", s.index)) if v is not None}
            for s in episode.steps
        ]
        rewards = [s.reward for s in episode.steps]
        body |= {"reward": episode.reward, "parts": dict(episode.parts)}
        body["steps"] = [
            step | {"reward": reward} for step, reward in zip(steps, rewards, strict=True)
        ]
    return body | ({} if episode.reason is None else {"reason": episode.reason})


def _post_outcome(live: LiveSystem, episode: str, body: dict[str, Any]) -> int:
    """Return the status; 0 if the gateway does not answer in time."""
    headers = {"Authorization": f"Bearer {live.system.api_key}", "Content-Type": "application/json"}
    url = f"{live.system.base_url}/v1/episodes/{episode}/outcome"
    end = time.monotonic() + _ANSWER_WITHIN
    while time.monotonic() < end:
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return error.code
        except OSError:
            # It is restarting.
            pass
        time.sleep(0.2)
    return 0
