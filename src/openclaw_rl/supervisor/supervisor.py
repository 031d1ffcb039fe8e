"""Supervisor: runs each worker in its own process, restarts it when it ends, and gives up after repeated crashes.

Workers run until they are stopped, so every other end counts as a crash. A worker without heartbeats is killed.
Workers end with the supervisor, even if it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import uvloop

from openclaw_rl.common.atomic_files import ensure_folder
from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.worker_loop import stop_on_signals
from openclaw_rl.engines import registry
from openclaw_rl.errors import OpenClawError, StoreError
from openclaw_rl.judge import local_model as own
from openclaw_rl.judge import preflight
from openclaw_rl.serve.auth import read_key_file
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor import completion
from openclaw_rl.supervisor.heartbeat_monitor import CHECK_INTERVAL, HeartbeatMonitor
from openclaw_rl.train import checkpoints, resume, tracking
from openclaw_rl.trajectories import sync_worker

log = logging.getLogger("openclaw_rl.run")

WORKERS = ("engine", "gateway", "collect", "judge", "train")
ENGINE_WORKERS = {"engine": lambda config: config, own.ENGINE_PROCESS: own.engine_config}
"""Workers that run an engine, and their settings. They do not open the store; the supervisor writes their heartbeat."""
_NICE_VALUES = {"collect": 5, "judge": 5, own.ENGINE_PROCESS: 5, "train": 10, "data": 10}
_CRASH_WINDOW = 60.0  # seconds over which crashes are counted
_STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL


# -------------------------------------------------------------------------------------------------- worker processes


def run_worker(name: str, config: Config) -> None:
    """Run one worker until SIGTERM or SIGINT. Imports are local, so that a process loads only its own worker's code."""
    readable = "training.log" if name == "train" else None
    setup_logging(name, config.logs_dir, config.run.log_level, readable=readable, named=False)
    _lower_priority(_NICE_VALUES.get(name, 0))
    if name in ENGINE_WORKERS:
        registry.serve(ENGINE_WORKERS[name](config))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_async_worker(name, config))


def _lower_priority(nice: int) -> None:
    """Give the engine and the gateway priority over this worker, as a person waits for the reply."""
    if nice:
        os.nice(nice)
        if hasattr(os, "SCHED_BATCH"):  # Linux: do not interrupt other processes at each wake-up
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


async def _run_async_worker(name: str, config: Config) -> None:
    stop = stop_on_signals()
    if name == "gateway":
        from openclaw_rl.serve.app import run
    elif name == "collect":
        from openclaw_rl.collect.worker import run
    elif name == "judge":
        from openclaw_rl.judge.worker import run
    elif name == "data":
        from openclaw_rl.trajectories.sync_worker import run
    else:
        from openclaw_rl.train.worker import run
    await run(config, stop=stop)


def with_required_workers(config: Config, workers: Sequence[str]) -> tuple[str, ...]:
    """Return the named workers and those that the settings of `data` and the local judge model need."""
    data, more = config.data, set(workers)
    if data.export_dir and more & {"gateway", "collect"}:
        more |= {"collect", "data"}  # a turn is exported once its reaction is known
    if (data.path or data.watch_dir) and "train" in more:
        more |= {"judge", "data"}
    if "judge" in more and own.is_configured(config):
        more.add(own.ENGINE_PROCESS)
    return tuple(name for name in (own.ENGINE_PROCESS, *WORKERS, "data") if name in more)


# ------------------------------------------------------------------------------------------------------ the supervisor


@dataclass(slots=True)
class WorkerProcess:
    """A worker's process and its crash history."""

    name: str
    monitor: HeartbeatMonitor
    process: asyncio.subprocess.Process | None = None
    crashes: deque[float] = field(default_factory=deque)
    last_exit: str = ""
    output_tail: deque[str] = field(default_factory=lambda: deque(maxlen=15))


class Supervisor:
    """Runs workers as child processes.

    Consumes: exits of workers. Produces: restarts, and a `supervisor` heartbeat with note `ok` or `degraded: ...`.
    Waits for: the stop event. Unblocked by: a signal, or a worker that crashes too often.
    """

    def __init__(self, config: Config, workers: Sequence[str] = WORKERS, *, echo: bool = True) -> None:
        self._config, self._worker_names = config, tuple(workers)
        self._workers = [WorkerProcess(name, self._new_monitor()) for name in workers]
        self._echo = echo
        self._failure: OpenClawError | None = None

    def _new_monitor(self) -> HeartbeatMonitor:
        return HeartbeatMonitor(hang=self._config.run.heartbeat_timeout, start=self._config.run.startup_timeout)

    def worker_pid(self, name: str) -> int | None:
        """Return the process id of a running worker, or None."""
        process = next((c.process for c in self._workers if c.name == name), None)
        return process.pid if process is not None and process.returncode is None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Keep all workers running until `stop`. Raises `OpenClawError` if one crashes too often."""
        keepers = [asyncio.create_task(self._keep_running(c, stop), name=f"keep-{c.name}") for c in self._workers]
        beat = asyncio.create_task(self._heartbeat_loop(stop), name="supervisor-beat")
        stopped = asyncio.create_task(stop.wait(), name="supervisor-stop")
        tasks = [*keepers, beat, stopped]
        if completion.ends_by_itself(self._config, self._worker_names):
            tasks.append(asyncio.create_task(completion.stop_when_finished(self._config, stop)))
        try:
            # A restart task that ends before the stop has failed, and then nothing restarts its worker.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            stop.set()
            await self._stop_workers()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure:
            raise self._failure

    async def _keep_running(self, child: WorkerProcess, stop: asyncio.Event) -> None:
        while not stop.is_set():
            child.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "openclaw_rl", "worker", child.name, f"--with-parent={os.getpid()}"),
                env=settings.to_environment(self._config, child.name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            log.debug("%s: process %d started", child.name, child.process.pid)
            child.monitor = self._new_monitor()
            await self._relay_output(child)
            code = await child.process.wait()
            if stop.is_set():
                return
            self._record_crash(child, code)
            if len(child.crashes) >= self._config.run.max_crashes_per_minute:
                self._failure = self._give_up(child)
                stop.set()
                return
            await asyncio.sleep(min(5.0, 0.1 * 2 ** len(child.crashes)))

    async def _relay_output(self, child: WorkerProcess) -> None:
        """Print the worker's output lines with its name, and keep the last ones for the error message."""
        assert child.process is not None
        assert child.process.stdout is not None
        while True:
            try:
                raw = await child.process.stdout.readline()
            except ValueError:  # a line over the reader's limit is skipped
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip()
            child.output_tail.append(line)
            if self._echo:
                sys.stderr.write(f"{child.name:>8} | {line}\n")

    def _record_crash(self, child: WorkerProcess, code: int) -> None:
        now = time.time()
        child.crashes.append(now)
        while child.crashes and child.crashes[0] < now - _CRASH_WINDOW:
            child.crashes.popleft()
        child.last_exit = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if child.monitor.is_hung:
            child.last_exit = f"no heartbeat for {child.monitor.silence_limit:g} s"
        limit, output = self._config.run.max_crashes_per_minute, (child.output_tail or ["none"])[-1]
        words = "%s ended (%s): restarting it; %d of %d crashes within a minute. Last output: %s"
        log.warning(words, child.name, child.last_exit, len(child.crashes), limit, output)

    def _give_up(self, child: WorkerProcess) -> OpenClawError:
        tail = "\n".join(f"    {line}" for line in child.output_tail)
        return OpenClawError(
            f"{child.name} crashed {len(child.crashes)} times within a minute (last: {child.last_exit}), so the system "
            f"was stopped. Its last output:\n{tail}\nThe full log: {self._config.logs_dir / (child.name + '.log')}. "
            "Run `openclaw-rl doctor` to find the cause."
        )

    async def _heartbeat_loop(self, stop: asyncio.Event) -> None:
        store = await asyncio.to_thread(Store.open, self._config.store_path)
        while not stop.is_set():
            try:
                await asyncio.to_thread(heartbeats.write_heartbeat, store, "supervisor", self.health_note())
                for name in ENGINE_WORKERS:
                    if engine := self.worker_pid(name):
                        await asyncio.to_thread(
                            heartbeats.write_heartbeat, store, name, self._config.engine.backend, pid=engine
                        )
                self._kill_hung(await asyncio.to_thread(_read_heartbeats, store))
            except StoreError as error:  # the disk may be full or busy for a moment, and the workers continue
                log.warning("the supervisor's heartbeat was not written: %s", error)
            await asyncio.sleep(CHECK_INTERVAL)

    def _kill_hung(self, beats: Mapping[str, heartbeats.Heartbeat]) -> None:
        """Kill hung workers; their restart tasks start them again. Called only if heartbeats can be written at all."""
        for child in self._workers:
            pid, beat = self.worker_pid(child.name), beats.get(child.name)
            if pid is None or child.name in ENGINE_WORKERS:  # the supervisor writes their heartbeat
                continue
            at, own = (beat.at, beat.pid == pid) if beat is not None else (None, False)
            if child.monitor.record_check(at, time.monotonic(), own=own) and child.process is not None:
                log.warning("%s has sent no heartbeat for %g s: killing it", child.name, child.monitor.silence_limit)
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()  # SIGTERM needs the event loop that hangs

    def health_note(self) -> str:
        """Return `ok`, or `degraded: ` with the workers that crashed within the last minute."""
        now = time.time()
        bad = [
            f"{c.name} crashed {len(c.crashes)}x ({c.last_exit})"
            for c in self._workers
            if c.crashes and c.crashes[-1] > now - _CRASH_WINDOW
        ]
        return "degraded: " + ", ".join(bad) if bad else "ok"

    async def _stop_workers(self) -> None:
        alive = [c.process for c in reversed(self._workers) if c.process and c.process.returncode is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(p.wait() for p in alive)), _STOP_TIMEOUT)
        for process in alive:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def _read_heartbeats(store: Store) -> dict[str, heartbeats.Heartbeat]:
    with store.read() as conn:
        return {beat.name: beat for beat in heartbeats.read_heartbeats(conn)}


# --------------------------------------------------------------------------------------------------------- preparation


def prepare_home(config: Config) -> None:
    """Create the home folder, private to this user. Raises `OpenClawError` if that fails."""
    for folder in (config.home_dir, config.policies_dir, config.logs_dir):
        ensure_folder("home", folder)
    try:
        config.home_dir.chmod(0o700)  # it may exist already, with access for others
    except OSError as error:
        raise OpenClawError(
            f"home {config.home_dir}: cannot be made private ({error.strerror}). Choose a folder that you own with "
            "--home."
        ) from error


@contextlib.contextmanager
def lock_home(config: Config) -> Iterator[None]:
    """Hold the home folder's lock, since two systems on one home would conflict over the socket and the lease."""
    path = config.home_dir / "up.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OpenClawError(
                f"{config.home_dir}: another openclaw-rl is running on this home. Stop it, or use another --home."
            ) from None
        yield


def is_home_locked(config: Config) -> bool:
    """Return whether a system with a gateway runs on the home, or starts there."""
    try:
        with lock_home(config):
            return False
    except OpenClawError:
        return True


def check_port_free(config: Config) -> None:
    """Raise `OpenClawError` if the port is taken; called before anything is started."""
    family = socket.AF_INET6 if ":" in config.serve.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.serve.host, config.serve.port))
        except OSError as error:
            raise OpenClawError(
                f"{config.serve.host}:{config.serve.port} cannot be bound ({error.strerror}). "
                "Stop what listens there, or choose another port with --port."
            ) from error


def supervise(config: Config, workers: Sequence[str], *, echo: bool = True) -> None:
    """Run the workers until a signal, or until training is finished (`completion`); used by `up`, `train` etc."""

    async def main() -> None:
        await Supervisor(config, workers, echo=echo).run(stop_on_signals())

    if "engine" in workers:
        registry.check_engine(config)
    if "judge" in workers:
        preflight.check_judge_settings(config)
    if own.ENGINE_PROCESS in workers:
        registry.check_engine(own.engine_config(config))
        prepare_home(own.engine_config(config))
    if "data" in workers:
        sync_worker.check_folders(config)
    if "train" in workers and config.train.launch.node_rank == 0:
        tracking.check_installed(config.track)
        checkpoints.check_save_dir(config.train)
    prepare_home(config)
    setup_logging("supervisor", config.logs_dir, config.run.log_level)
    if {"train", "gateway"} & set(workers):
        resume.start_from_checkpoint(config, train="train" in workers)
    if "gateway" in workers:
        with lock_home(config):
            check_port_free(config)
            asyncio.run(main())
    else:
        asyncio.run(main())
        if completion.ends_by_itself(config, workers):
            completion.save_last_checkpoint(config)


def read_key(config: Config) -> str:
    """Return the API key: configured, or generated at the gateway's first start. Raises `OpenClawError` without one."""
    if config.serve.api_key:
        return config.serve.api_key
    address = running_address(config.home_dir)
    if address is not None and address.key == "settings":
        raise OpenClawError(
            f"the gateway at {address.url} has its key from its settings, and the home does not store it. Set "
            "OPENCLAW_API_KEY (serve.api_key) here, too."
        )
    if not config.key_file.exists():
        raise OpenClawError(f"{config.key_file}: no key yet. The gateway creates it on its first start.")
    return read_key_file(config.key_file)[0]
