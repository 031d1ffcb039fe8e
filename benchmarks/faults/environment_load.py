"""The load of the plan `environments`: `openclaw-rl env run` on small tasks in boxes, one run after the other."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.leftovers import find_leftovers, lease_names, own_processes
from benchmarks.faults.live_system import FaultFinding, LiveSystem, wait_until

from openclaw_rl.environments.episode_client import EpisodeClient, open_session
from openclaw_rl.environments.types import PlayOutcome
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config

_EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"
_TASKS_OF_RUN = 2
_GROUP_SIZE = 4
_PARALLEL = 2
_EPISODE_SECONDS = 120
# Seconds.
_PLAYED_WITHIN = 120.0
# Seconds after the end of a runner; its reaper waits for the gateway.
_CLEAN_WITHIN = 60.0
# Seconds after SIGINT.
_STOP_WITHIN = 60.0
_LOOK_SECONDS = 0.25
_LEASE_SECONDS = 0.05
# Leftovers that a violation names.
_NAMED = 5
_UNLIKE = (
    ("What is the capital of France?", 1.0),
    ("What is the opposite of hot?", 0.0),
    ("Name a fruit.", 1.0),
)
"""First messages and rewards of a group from which something is learned."""


def write_tracks(folder: Path) -> list[tuple[str, ...]]:
    """Write the tasks of `make demo-terminal`, which the starter solves at times. Return sources of a few tasks each.

    A source is arguments of `openclaw-rl env run`.
    """
    sys.path.insert(0, str(_EXAMPLES))
    try:
        importlib.import_module("starter_tracks").write_terminal_track(folder)
    finally:
        sys.path.remove(str(_EXAMPLES))
    sources = []
    tasks = sorted(folder.iterdir())
    for number in range(0, len(tasks), _TASKS_OF_RUN):
        track = folder / f"track-{number}"
        track.mkdir()
        for task in tasks[number : number + _TASKS_OF_RUN]:
            task.rename(track / task.name)
        sources.append((f"harbor:{track}", "--agent", "plain"))
    return sources


@dataclass(slots=True, kw_only=True)
class EnvironmentLoad:
    """Runs of `env run`, one after the other. A run whose runner was killed is continued by the next runner.

    `sources`: arguments of one run each. `run`: the current or the last one. `scratch`: the runners' folder for
    temporary files, while `play_load` plays.
    """

    config: Config
    sources: Sequence[tuple[str, ...]]
    scratch: Path = field(init=False)
    run: str = ""
    _names: set[str] = field(default_factory=set)  # of boxes that were seen
    _process: asyncio.subprocess.Process | None = None
    _may_start: asyncio.Event = field(default_factory=asyncio.Event)
    _was_killed: bool = False
    _problems: list[str] = field(default_factory=list)

    @property
    def is_playing(self) -> bool:
        """Whether a runner runs."""
        return self._process is not None and self._process.returncode is None

    def take_problems(self) -> list[str]:
        """Return what went wrong since the last call."""
        found = self._problems
        self._problems = []
        return found

    def find_processes(self, *words: str) -> list[int]:
        """Return the processes whose command line has one of the words."""
        self._names |= lease_names(self.scratch)
        found = own_processes(self.scratch, self._names)
        return sorted(
            pid for pid, command in found.items() if any(word in command for word in words)
        )

    @contextlib.asynccontextmanager
    async def no_new_runner(self) -> AsyncIterator[None]:
        """No other runner starts while the block runs."""
        self._may_start.clear()
        try:
            yield
        finally:
            self._may_start.set()

    async def kill_runner(self) -> float:
        """SIGKILL of the runner, as soon as one runs. Return the time of it. Raises `FaultFinding` if none runs."""
        if not await wait_until(lambda: self.is_playing, _PLAYED_WITHIN):
            raise FaultFinding(f"no runner within {_PLAYED_WITHIN:g} s")
        assert self._process is not None
        self._was_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        return time.time()

    async def check_clean(self, when: str) -> None:
        """Wait until nothing is left of runners and boxes. Raises `FaultFinding` if something stays."""
        end = time.monotonic() + _CLEAN_WITHIN
        while left := await asyncio.to_thread(self._find_leftovers):
            if time.monotonic() > end:
                more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
                raise FaultFinding(
                    f"{_CLEAN_WITHIN:g} s after {when}: left is {', '.join(left[:_NAMED])}{more}"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def _find_leftovers(self) -> list[str]:
        self._names |= lease_names(self.scratch)
        return find_leftovers(self.scratch, self.config.home_dir, self._names)

    async def play_runs(self) -> None:
        """Run one run after the other until it is cancelled, and clean up then."""
        self._may_start.set()
        watcher = asyncio.create_task(self._watch_leases())
        try:
            for number in itertools.count():
                await self._play_run(f"run-{number}", self.sources[number % len(self.sources)])
        finally:
            await asyncio.shield(self._stop_runner())
            watcher.cancel()

    async def _play_run(self, run: str, source: Sequence[str]) -> None:
        self._was_killed = True
        while self._was_killed:
            await self._may_start.wait()
            self.run = run
            self._was_killed = False
            self._process = await self._start_runner(source)
            code = await self._process.wait()
            await self._may_start.wait()
        # 1: no episode is done, or the gateway was away for long.
        if code not in (0, 1):
            self._problems.append(f"a runner ended with {code}")
        await self._note_leftovers("the end of a run")

    async def _start_runner(self, source: Sequence[str]) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "openclaw_rl", "env", "run", *source]
        command += [
            "--home",
            str(self.config.home_dir),
            "--run",
            self.run,
            "--unchecked",
            "--json",
            "--max-steps",
            "2",
        ]
        command += ["--group", str(_GROUP_SIZE), "--parallel", str(_PARALLEL)]
        command += ["--limit-seconds", str(_EPISODE_SECONDS)]
        with (self.config.logs_dir / "env_run.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(self.scratch)},
            )

    async def _watch_leases(self) -> None:
        """Note the names of all boxes, by which their control groups and processes are found."""
        while True:
            self._names |= await asyncio.to_thread(lease_names, self.scratch)
            await asyncio.sleep(_LEASE_SECONDS)

    async def _stop_runner(self) -> None:
        if self._process is not None and self.is_playing:
            self._process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_WITHIN)
            except TimeoutError:
                self._problems.append(f"the runner did not end within {_STOP_WITHIN:g} s of SIGINT")
                self._process.kill()
                await self._process.wait()
        await self._note_leftovers("the last run was interrupted")

    async def _note_leftovers(self, when: str) -> None:
        try:
            await self.check_clean(when)
        except FaultFinding as error:
            self._problems.append(str(error))


async def play_unlike_group(live: LiveSystem) -> None:
    """Play a group of episodes with unlike rewards. From groups whose rewards are all the same, nothing is learned.

    Raises `OpenClawError` if the gateway refuses an episode or does not answer.
    """
    group = f"unlike-{time.time_ns()}"
    async with open_session(live.system.api_key) as http:
        client = EpisodeClient(http, live.system.base_url)
        for number, (message, reward) in enumerate(_UNLIKE):
            body = {"task": "unlike", "group": {"id": group, "size": len(_UNLIKE)}, "max_steps": 1}
            ticket = await client.open_episode(f"{group}.{number}", body)
            sent = {
                "model": ticket.model,
                "messages": [{"role": "user", "content": message}],
                "max_tokens": 24,
            }
            owner = {"Authorization": f"Bearer {ticket.api_key}"}
            async with http.post(
                f"{ticket.base_url}/chat/completions", json=sent, headers=owner
            ) as response:
                if response.status != 200:
                    raise OpenClawError(
                        f"no reply in {ticket.episode}: {(await response.text())[:300]}"
                    )
            await client.end_episode(ticket.episode, PlayOutcome(status="done", reward=reward))


@contextlib.asynccontextmanager
async def play_load(load: EnvironmentLoad | None) -> AsyncIterator[None]:
    """Runs are played while the block runs; without a load, none."""
    if load is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="faults-boxes-", ignore_cleanup_errors=True) as folder:
        load.scratch = Path(folder)
        # Boxes of root run as another user, who must be able to pass through.
        load.scratch.chmod(0o711)
        task = asyncio.create_task(load.play_runs())
        try:
            yield
        finally:
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
    if isinstance(done[0], Exception):
        raise done[0]
