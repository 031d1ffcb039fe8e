"""Supervisor: runs each worker in its own process, and restarts it when it ends.

Workers run until they are stopped, so every other end counts as a crash. A worker that hangs is killed
(`worker_watch`).
The delay before a restart grows with the crashes; meanwhile the worker is parked, with the reason and the cure in its
heartbeat. Repeated crashes of the engine or the gateway end the system. Workers end with the supervisor, even if it is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from openclaw_rl.common.gateway_address import running_address, running_page
from openclaw_rl.common.log_codes import EndCause, worker_end_fields
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.sockets import bind_sockets
from openclaw_rl.common.worker_loop import (
    stop_on_signals,
    wait_or_stop,
)
from openclaw_rl.errors import OpenClawError, StoreError, WorkerNameTaken
from openclaw_rl.judge import local_model as own
from openclaw_rl.serve.auth import read_key_file
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.workers.attempts import excuse_deaths
from openclaw_rl.store.workers.registry import live_workers
from openclaw_rl.supervisor import completion, preflight
from openclaw_rl.supervisor.engine_probe import EngineProbe
from openclaw_rl.supervisor.heartbeat_monitor import CHECK_INTERVAL
from openclaw_rl.supervisor.home_folder import LOCK_FILE, lock_home, prepare_home
from openclaw_rl.supervisor.policy_owner import set_owner, with_stored_owner
from openclaw_rl.supervisor.service_consent import require_consent
from openclaw_rl.supervisor.worker_end import MACHINE_CAUSES
from openclaw_rl.supervisor.worker_process import WorkerProcess
from openclaw_rl.supervisor.worker_watch import WorkerWatch
from openclaw_rl.train import resume

log = logging.getLogger("openclaw_rl.run")

WORKERS = ("engine", "gateway", "collect", "judge", "train")
ENGINE_WORKERS = {"engine": lambda config: config, own.ENGINE_PROCESS: own.engine_config}
"""Workers that run an engine, and their settings. They do not open the store; the supervisor writes their heartbeat."""
SERVING_WORKERS = ("engine", "gateway")
"""Workers without which no request is answered: only these may end a system that serves."""
# Seconds; first and longest delay before they are started again.
_SERVING_DELAYS = (0.2, 2.0)
# Seconds between SIGTERM and SIGKILL.
_STOP_TIMEOUT = 10.0


def with_required_workers(config: Config, workers: Sequence[str]) -> tuple[str, ...]:
    """Return the named workers and those that the settings of `data`, the local judge model and the page need."""
    data = config.data
    required = set(workers)
    if data.export_dir and not required.isdisjoint({"gateway", "collect"}):
        # A turn is exported once its reaction is known.
        required |= {"collect", "data"}
    imports = data.path or data.watch_dir
    if imports and "train" in required:
        required |= {"judge", "data"}
    if "judge" in required and own.is_configured(config):
        required.add(own.ENGINE_PROCESS)
    if "gateway" in required and config.serve.page:
        required.add("page")
    in_order = (own.ENGINE_PROCESS, *WORKERS, "data", "page")
    return tuple(filter(required.__contains__, in_order))


# ---------------------------------------------------------------------------------- the supervisor


class Supervisor:
    """Runs workers as child processes.

    Consumes: exits of workers. Produces: restarts, a `supervisor` heartbeat with note `ok` or `degraded: ...`, and the
    heartbeats of parked workers: those that crashed and wait for their next start.
    Waits for: the stop event. Unblocked by: a signal, or a required worker that crashes too often.
    """

    def __init__(
        self, config: Config, workers: Sequence[str] = WORKERS, *, echo: bool = True
    ) -> None:
        self._config = config
        self._worker_names = tuple(workers)
        # Filled while it runs.
        self._listeners: list[socket.socket] = []
        self._workers = [
            WorkerProcess(name, config, listeners=self._listeners if name == "gateway" else ())
            for name in workers
        ]
        self._probes: dict[str, EngineProbe] = {}
        for name, engine_config in ENGINE_WORKERS.items():
            if name in workers:
                self._probes[name] = EngineProbe(engine_config(config))
        # Serving outlives the other stages. Without a gateway, the caller waits for the result of these workers.
        is_serving = "gateway" in workers or config.train.launch.node_rank > 0
        self._required = SERVING_WORKERS if is_serving else self._worker_names
        self._echo = echo
        self._watch = WorkerWatch(config, self._workers, self._probes, self.health_note)
        self._failure: OpenClawError | None = None

    def worker_pid(self, name: str) -> int | None:
        """Return the process id of a running worker, or None."""
        return next((child.pid for child in self._workers if child.name == name), None)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep all workers running until `stop`. Raises `OpenClawError` if a required one crashes too often."""
        if "gateway" in self._worker_names:
            # The gateway itself says why it cannot listen.
            with contextlib.suppress(OSError):
                self._listeners += bind_sockets(self._config.serve.host, self._config.serve.port)
        tasks = self._start_tasks(stop)
        try:
            # A restart task that ends before the stop has failed, and then nothing restarts its worker.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stop.set()
            for listener in self._listeners:
                listener.close()
            crashed = self._crashed_for_good()
            await self._stop_workers()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self._report_crashed, crashed)
        if self._failure:
            raise self._failure

    def _start_tasks(self, stop: asyncio.Event) -> list[asyncio.Task[Any]]:
        """Start a task for each worker and each probe, and those that watch all of them, until `stop`."""
        coroutines: dict[str, Coroutine[Any, Any, Any]] = {}
        for child in self._workers:
            coroutines[f"keep-{child.name}"] = self._keep_running(child, stop)
        coroutines["supervisor-beat"] = self._watch.run(stop)
        coroutines["supervisor-stop"] = stop.wait()
        for name, probe in self._probes.items():
            coroutines[f"probe-{name}"] = probe.run(stop)
        coroutines["supervisor-lock"] = self._watch.watch_write_lock(stop)
        if completion.ends_by_itself(self._config, self._worker_names):
            coroutines["supervisor-end"] = completion.stop_when_finished(self._config, stop)
        return [asyncio.create_task(work, name=name) for name, work in coroutines.items()]

    def _crashed_for_good(self) -> list[WorkerProcess]:
        """Return the workers that crashed and do not run, or run after more than one crash."""
        crashed = [child for child in self._workers if child.has_crashed()]
        return [child for child in crashed if child.pid is None or child.crashes.count > 1]

    async def _keep_running(self, child: WorkerProcess, stop: asyncio.Event) -> None:
        while not stop.is_set():
            code = await child.run_once(echo=self._echo)
            if stop.is_set():
                return
            if not child.is_replaced:
                await self._handle_crash(child, code, stop)

    async def _handle_crash(self, child: WorkerProcess, code: int, stop: asyncio.Event) -> None:
        """Record a crash. Wait until the worker may be started again, or set `stop` if it has crashed too often."""
        last_pid = child.last_pid
        if self._record_crash(child, code):
            self._failure = self._give_up(child)
            stop.set()
            return
        if child.crashes.cause in MACHINE_CAUSES and last_pid is not None:
            await asyncio.to_thread(self._excuse_rows, last_pid)
        await self._wait_while_parked(child, stop)

    async def _wait_while_parked(self, child: WorkerProcess, stop: asyncio.Event) -> None:
        while not stop.is_set() and child.is_parked():
            await wait_or_stop(stop, CHECK_INTERVAL / 10)

    def _record_crash(self, child: WorkerProcess, code: int) -> bool:
        """Record and log a crash. Return whether it is one too many of a required worker."""
        is_serving = child.name in SERVING_WORKERS
        delays = _SERVING_DELAYS if is_serving else (1.0, self._config.run.max_restart_delay)
        delay = child.record_crash(code, delays)
        crashes = child.crashes
        is_last = child.name in self._required and crashes.count >= self._config.run.max_crashes
        follows = "the system stops" if is_last else f"it starts again in {delay:.3g} s"
        log.warning(
            "%s ended (%s): crash %d, %s. Reason: %s. %s",
            child.name,
            crashes.exit,
            crashes.count,
            follows,
            crashes.reason.rstrip("."),
            crashes.cure,
            extra={
                "output": list(child.output.lines),
                **worker_end_fields(child.name, crashes.cause or EndCause.EXIT),
            },
        )
        return is_last

    def _excuse_rows(self, pid: int) -> None:
        """Record that the rows that a process worked on did not end it."""
        with contextlib.suppress(StoreError), Store.open(self._config.store_path) as store:
            excuse_deaths(store, pid)

    def _give_up(self, child: WorkerProcess) -> OpenClawError:
        tail = "\n".join(f"    {line}" for line in child.output.lines)
        return OpenClawError(
            f"{child.name} {child.crashes.describe()} The system was stopped. Last output:\n{tail}\n"
            f"The full log: {self._config.logs_dir / (child.name + '.log')}"
        )

    def health_note(self) -> str:
        """Return `ok`, or `degraded: ` with the workers that crashed and have not recovered since."""
        crashes = []
        for child in self._workers:
            if child.has_crashed():
                crashes.append(
                    f"{child.name} crashed {child.crashes.count}x ({child.crashes.exit})"
                )
        return "degraded: " + ", ".join(crashes) if crashes else "ok"

    async def _stop_workers(self) -> None:
        processes = [child.process for child in reversed(self._workers) if child.process]
        alive = _alive(processes)
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        ends = asyncio.gather(*(process.wait() for process in alive))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ends, _STOP_TIMEOUT)
        for process in _alive(alive):
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _report_crashed(self, crashed: Sequence[WorkerProcess]) -> None:
        """Log the workers that crashed and did not recover until the system stopped, and record it in the store."""
        for child in crashed:
            description = child.crashes.describe()
            if child.name not in self._required:
                log.warning(
                    "%s did not recover before the system was stopped. It %s",
                    child.name,
                    description,
                )
            with contextlib.suppress(StoreError), Store.open(self._config.store_path) as store:
                heartbeats.write_heartbeat(
                    store, child.name, description, heartbeats.PARKED, child.last_pid
                )


# ------------------------------------------------------------------------------------- preparation


def _alive(processes: Sequence[asyncio.subprocess.Process]) -> list[asyncio.subprocess.Process]:
    return [process for process in processes if process.returncode is None]


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


def check_home_free(config: Config) -> None:
    """Raise `OpenClawError` if a system runs on the home. Creates nothing."""
    if (config.home_dir / LOCK_FILE).exists():
        with lock_home(config):
            pass


def check_names_free(store: Store, workers: Sequence[str]) -> None:
    """Raise `WorkerNameTaken` if one of these workers runs on the home already, started by another command."""
    with store.read() as conn:
        running = {worker.name: worker for worker in live_workers(store, conn).values()}
    for name in workers:
        if name in running:
            raise WorkerNameTaken(
                f"{name}: process {running[name].pid} works on this home already. Stop the command that started it, or "
                "use another --home."
            )


def admit_start(config: Config, workers: Sequence[str], *, yes: bool) -> None:
    """Check what no restart can heal, and ask the owner before anything is sent to a service.

    Every start of workers passes here: those in processes of their own by `supervise`, and a trainer in the process of
    a command. `yes`: the owner agrees without a question. Raises `OpenClawError`, or `click.Abort` if he says no.
    """
    preflight.check_before_start(config, workers)
    prepare_home(config)
    require_consent(config, workers, yes=yes)
    preflight.check_service(config, workers)


def supervise(
    config: Config,
    workers: Sequence[str],
    *,
    yes: bool = False,
    echo: bool = True,
    announce: Callable[[], None] = lambda: None,
    on_page: Callable[[], None] = lambda: None,
) -> None:
    """Run the workers until a signal, or until training is finished (`completion`); used by `up`, `train` etc.

    `yes`: as for `admit_start`. `announce`: called once nothing speaks against the start. `on_page`: called once the
    page can be opened.
    """
    admit_start(config, workers, yes=yes)
    announce()

    async def main() -> None:
        stop = stop_on_signals()
        waiting = asyncio.create_task(_call_when_page_runs(config, on_page, stop), name="page-link")
        try:
            await Supervisor(config, workers, echo=echo).run(stop)
        finally:
            waiting.cancel()

    if own.ENGINE_PROCESS in workers:
        prepare_home(own.engine_config(config))
    setup_logging("supervisor", config.logs_dir, config.run.log_level)
    # Raises for a damaged store, before workers are started and restarted.
    with Store.open(config.store_path) as store:
        check_names_free(store, workers)
    if {"train", "gateway"} & set(workers):
        resume.start_from_checkpoint(config, train="train" in workers)
    if "gateway" in workers:
        with lock_home(config):
            check_port_free(config)
            set_owner(config)
            asyncio.run(main())
    else:
        config = with_stored_owner(config)
        asyncio.run(main())
        if completion.ends_by_itself(config, workers):
            completion.save_last_checkpoint(config)


async def _call_when_page_runs(
    config: Config, on_page: Callable[[], None], stop: asyncio.Event
) -> None:
    """Call `on_page` in a thread once the gateway and the page listen."""
    home = config.home_dir
    while not stop.is_set():
        if running_address(home) is not None and running_page(home) is not None:
            await asyncio.to_thread(on_page)
            return
        await wait_or_stop(stop, CHECK_INTERVAL / 10)


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
        raise OpenClawError(
            f"{config.key_file}: no key yet. The gateway creates it on its first start."
        )
    return read_key_file(config.key_file)[0]
