"""Runs of `openclaw-rl env run` at a gateway whose engine gives one prepared reply, with samples of what they take.

The engine is the stub of `stub.py`: it answers every request with the same tokens, so that a run measures runner,
gateway, boxes and browsers, and not a model.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.faults.leftovers import find_leftovers, lease_names, own_processes
from benchmarks.swaps import cpu_seconds

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store.db import Store

# Its tokenizer and its template.
STARTER = ASSETS / "starter"
CONTEXT = 131_072
# Name of the run in its home.
RUN = "bench"
# Programs: boxes, and the program that drives a browser.
ROLES = ("runner", "programs", "browser", "gateway")
# Seconds after SIGINT.
_STOP_WITHIN = 60.0
_REAPER = "openclaw_rl.environments.reaper"
_BROWSER = "chrom"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """The size of everything at one time. Counts are medians where several samples were put together."""

    episodes: int  # that have ended
    memory: Mapping[
        str, float
    ]  # MB, proportional set size, of each role; the runner's with its reaper
    descriptors: Mapping[str, float]  # of runner and gateway
    processes: float  # of the run
    files: Mapping[str, float]  # in the home and in the folder for temporary files

    def memory_of(self, *roles: str) -> float:
        return sum(self.memory[role] for role in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """A run that has ended. `seconds`: of the whole command; `server_seconds`: processor time of gateway and stub.

    `summary`: what `env run --json` printed. `resets`: seconds from the opening of each episode to its first request.
    `left`: what was left of the run, in words.
    """

    seconds: float
    server_seconds: float
    summary: dict[str, Any]
    samples: list[RunSample]
    resets: list[float]
    left: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLoad:
    """A gateway and the stub behind it, and the folder for the runner's temporary files."""

    home: Path
    scratch: Path
    stub: servers.Server
    gateway: servers.Server
    store: Store

    def play_run(
        self, source: Sequence[str], *, limit: float, interval: float, seen: Callable[[int], None]
    ) -> PlayedRun:
        """Run `env run` with arguments, and return its figures. `seen` gets the number of episodes that have ended.

        `limit`: seconds; `interval`: seconds between samples. Raises `RuntimeError` if the run fails, or an episode
        is void.
        """
        before = self._server_seconds()
        began = time.perf_counter()
        samples = list[RunSample]()
        names = set[str]()
        with self._start_runner(source) as process:
            try:
                while process.poll() is None:
                    boxes = lease_names(self.scratch)
                    names |= boxes
                    samples.append(self._take_sample(process.pid, boxes))
                    seen(samples[-1].episodes)
                    if time.perf_counter() - began > limit:
                        raise RuntimeError(
                            f"the run took longer than {limit:g} s; {self._log_words()}"
                        )
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(interval)
            finally:
                _stop_runner(process)
        seconds = time.perf_counter() - began
        if process.returncode != 0:
            raise RuntimeError(f"`env run` ended with {process.returncode}; {self._log_words()}")
        summary = json.loads((self.home / "summary.json").read_text())
        if reasons := summary["void"]["reasons"]:
            raise RuntimeError(f"episodes were void, so nothing was measured. Reasons: {reasons}")
        return PlayedRun(
            seconds=seconds,
            server_seconds=self._server_seconds() - before,
            summary=summary,
            # The runner may have ended within the last one.
            samples=samples[:-1] or samples,
            resets=self._read_resets(),
            left=find_leftovers(self.scratch, self.home, names),
        )

    def _start_runner(self, source: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            "env",
            "run",
            *source,
            "--home",
            str(self.home),
            "--run",
            RUN,
        ]
        environment = os.environ | {
            "TMPDIR": str(self.scratch),
            "OPENCLAW_API_KEY": self.gateway.key,
        }
        with (
            (self.home / "summary.json").open("wb") as summary,
            (self.home / "run.log").open("wb") as log,
        ):
            return subprocess.Popen(
                [*command, "--unchecked", "--json"],
                stdout=summary,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def _take_sample(self, runner: int, boxes: Collection[str]) -> RunSample:
        gateway = self.gateway.process.pid
        memory = dict.fromkeys(ROLES, 0.0)
        found = with_descendants(own_processes(self.scratch, boxes))
        for pid, command in found.items():
            memory["runner" if pid == runner else _role_of(command)] += memory_mb(pid)
        memory["gateway"] = memory_mb(gateway)
        return RunSample(
            episodes=self._count_ended(),
            memory=memory,
            descriptors={"runner": _count_entries(runner), "gateway": _count_entries(gateway)},
            processes=len(found),
            files={"home": _count_files(self.home), "scratch": _count_files(self.scratch)},
        )

    def _server_seconds(self) -> float:
        return cpu_seconds(self.gateway.process.pid) + cpu_seconds(self.stub.process.pid)

    def _count_ended(self) -> int:
        with self.store.read() as conn:
            return int(
                conn.exec_driver_sql(
                    "SELECT count(*) FROM episodes WHERE outcome IS NOT NULL"
                ).scalar_one()
            )

    def _read_resets(self) -> list[float]:
        query = (
            "SELECT min(x.admitted_at) - e.started_at FROM episodes e JOIN exchanges x ON x.episode = e.id "
            "GROUP BY e.id ORDER BY e.started_at"
        )
        with self.store.read() as conn:
            return [float(value) for value in conn.exec_driver_sql(query).scalars()]

    def _log_words(self) -> str:
        return f"the end of its log:\n{(self.home / 'run.log').read_text(errors='replace')[-1500:]}"


@contextlib.contextmanager
def episode_load(reply: str) -> Iterator[EpisodeLoad]:
    """Start the stub with this reply and a gateway on a new home; stop both, and remove all folders, at exit."""
    servers.RUNS.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="e-", dir=servers.RUNS) as name,
        tempfile.TemporaryDirectory(prefix="episodes-", ignore_cleanup_errors=True) as temporary,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        scratch = Path(temporary)
        # Boxes of root run as another user, who must be able to pass through.
        scratch.chmod(0o711)
        home = folder / "home"
        home.mkdir(mode=0o700)
        stub = servers.stub(folder, _stub_settings(home, reply))
        stack.callback(stub.stop)
        gateway = servers.gateway(folder, STARTER)
        stack.callback(gateway.stop)
        store = stack.enter_context(Store.open(home / "store.db", create=False))
        yield EpisodeLoad(home=home, scratch=scratch, stub=stub, gateway=gateway, store=store)


def _stub_settings(home: Path, reply: str) -> dict[str, Any]:
    renderer = Renderer(ModelFiles.from_path(str(STARTER)))
    return {
        "pieces": [reply],
        "token_ids": renderer.tokenizer.encode(reply).tolist(),
        "stop": int(renderer.stop_token_ids[0]),
        "socket": str(home / "engine.sock"),
        "info": {
            "model": "openclaw",
            "context_length": CONTEXT,
            "vocab_size": renderer.vocabulary_size,
            "device": "cpu",
            "dtype": "float32",
        },
    }


def _stop_runner(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a runner that still runs; kill it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()


def with_descendants(found: Mapping[int, str]) -> dict[int, str]:
    """Return processes, by id with their command lines, and all that descend from them.

    A renderer of Chromium has a title in place of its environment, by which it would be found.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        # It has ended.
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    whole = dict(found)
    waiting = list(found)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in whole:
                whole[pid] = _read_command(pid)
                waiting.append(pid)
    return whole


def _read_command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def memory_mb(pid: int) -> float:
    """Return the proportional set size of a process in MB: a page that several share counts once over all of them.

    Where the kernel does not show it, the resident size, which is larger. 0 for a process that has ended.
    """
    for file, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            text = Path(f"/proc/{pid}/{file}").read_text()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        # A process that is ending has none.
        if field in text:
            return int(text.split(field)[1].split()[0]) / 1024
    return 0.0


def _role_of(command: str) -> str:
    """Return what a process of the run is, by its command line. The reaper counts as the runner."""
    if _REAPER in command:
        return "runner"
    return "browser" if _BROWSER in command.split(" ")[0] else "programs"


def _count_entries(pid: int) -> int:
    """Return the number of open descriptors of a process; 0 if it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _count_files(folder: Path) -> int:
    """Return the number of files and folders below a folder; what disappears meanwhile does not count."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))
