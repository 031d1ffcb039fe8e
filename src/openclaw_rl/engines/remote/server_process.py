"""Engine process for an external server program: start it, log its output, watch it, and stop it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.common import process_guard
from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.common.logging_metrics import LogFileHandler
from openclaw_rl.common.sockets import clear_socket
from openclaw_rl.common.worker_loop import stop_on_signals, wait_or_stop
from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.errors import EngineError, EngineGone, EngineOutOfMemory, has_out_of_memory_text
from openclaw_rl.settings.load import Config, EngineConfig
from openclaw_rl.settings.specs import ForeignServer, server_at_url

log = logging.getLogger(__name__)

# Seconds between two progress messages.
_PROGRESS_INTERVAL = 5.0
# Seconds between two health checks during the start.
_STARTUP_POLL_INTERVAL = 0.25
# Seconds between two health checks of a server that runs already.
_WATCH_INTERVAL = 2.0
# Seconds between stop and kill; the supervisor waits 10.
_STOP_TIMEOUT = 9.0
# Seconds to read the last lines of a program that died.
_DRAIN_TIMEOUT = 1.0
# Last lines that the error message quotes.
_TAIL_LINES = 25
_LOG_BYTES = 10 * 2**20
_LOG_FILES = 3
# Not the inside of a traceback.
_ERROR_LINE = re.compile(r"\b(ERROR|CRITICAL)\b(?!.*\]  )|^\w*(Error|Exception): ")
_GUARD_PID_LINE = re.compile(r"^guard: pid (\d+)$")


def run_server(
    config: Config,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    http: HttpClient,
) -> None:
    """Run a server program until SIGTERM or SIGINT. Raises `EngineError` if it ends by itself.

    `name`: for messages and the log file; `http`: the client that reaches it.
    """
    if http.socket is not None:
        clear_socket(http.socket)
    try:
        asyncio.run(
            ServerProcess(name, http, config.logs_dir / f"{name}.log").run(command, environment)
        )
    finally:
        if http.socket is not None:
            http.socket.unlink(missing_ok=True)


class ServerProcess:
    """Runs a server program and copies its output to the logs, until a signal arrives or the program ends."""

    def __init__(self, name: str, http: HttpClient, log_file: Path) -> None:
        self.name = name
        self.http = http
        self.log_file = log_file
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process_group: int | None = None
        # False during the stop: errors then go to its own log only.
        self._log_errors = True

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        stop = stop_on_signals()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", process_guard.__file__, *command),
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C reaches the supervisor only, which then signals us.
            start_new_session=True,
        )
        assert process.stdout is not None
        tasks = [
            asyncio.create_task(self._relay_output(process.stdout)),
            asyncio.create_task(self._log_until_ready()),
            asyncio.create_task(stop.wait()),
            asyncio.create_task(_wait_for_exit(process)),
        ]
        try:
            await asyncio.wait(tasks[2:], return_when=asyncio.FIRST_COMPLETED)
            self._log_errors = not stop.is_set()
            if self._log_errors:
                # Read its last output.
                await asyncio.wait(tasks[:1], timeout=_DRAIN_TIMEOUT)
        finally:
            await self._end_process(process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.close()
        if not stop.is_set():
            raise self._exit_error(process.returncode)

    async def _relay_output(self, lines: asyncio.StreamReader) -> None:
        """Write every line to the program's own log, and errors also to ours."""
        program_log = _program_logger(self.name, self.log_file)
        try:
            while True:
                try:
                    raw = await lines.readline()
                except ValueError:
                    # A line over the reader's limit is skipped.
                    continue
                if not raw:
                    return
                line = raw.decode(errors="replace").rstrip()
                guard_pid = _GUARD_PID_LINE.match(line)
                if guard_pid is not None:
                    self._process_group = int(guard_pid[1])
                    continue
                self._last_lines.append(line)
                program_log.info("%s", line)
                loud = self._log_errors and _ERROR_LINE.search(line) is not None
                log.log(logging.WARNING if loud else logging.DEBUG, "%s: %s", self.name, line)
        finally:
            for handler in list(program_log.handlers):
                program_log.removeHandler(handler)
                handler.close()

    async def _log_until_ready(self) -> None:
        began = logged = time.monotonic()
        while True:
            with contextlib.suppress(EngineGone):
                await self.http.check_alive()
                log.info(
                    "%s answers at %s after %.0f s",
                    self.name,
                    self.http.address,
                    time.monotonic() - began,
                )
                return
            now = time.monotonic()
            if now - logged >= _PROGRESS_INTERVAL:
                logged = now
                log.info(
                    "%s loads the model: %.0f s so far (log: %s)",
                    self.name,
                    now - began,
                    self.log_file,
                )
            await asyncio.sleep(_STARTUP_POLL_INTERVAL)

    async def _end_process(self, process: asyncio.subprocess.Process) -> None:
        """Stop the program through its guard; kill both after the timeout."""
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_wait_for_exit(process), _STOP_TIMEOUT)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        # The program survives if its guard was killed.
        if self._process_group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process_group, signal.SIGKILL)
        await process.wait()

    def _exit_error(self, code: int | None) -> EngineError:
        tail = "\n".join(f"    {line}" for line in self._last_lines)
        kind = EngineOutOfMemory if has_out_of_memory_text(tail) else EngineError
        return kind(
            f"{self.name} ended ({_describe_exit(code)}). Its last output:\n{tail}\nIts log: {self.log_file}"
        )


def _describe_exit(code: int | None) -> str:
    """Return the signal that ended a program, or its exit code. A shell reports a signal as 128 and its number."""
    if not code or 0 < code <= 128:
        return f"exit code {code}"
    number = -code if code < 0 else code - 128
    return f"signal {signal.Signals(number).name}"


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait for the exit. Unlike `process.wait()`, do not wait until all holders of its output have closed it."""
    while process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it
        await asyncio.sleep(0.05)


async def watch_server(http: HttpClient, server: ForeignServer) -> None:
    """Watch a server until SIGTERM or SIGINT; log when it comes up or goes down."""
    stop = stop_on_signals()
    was_up = None
    while not stop.is_set():
        try:
            await http.check_alive()
            if was_up is not True:
                log.info("the engine at %s answers", http.address)
            was_up = True
        except EngineGone as error:
            if was_up is not False:
                log.warning("%s. %s; the gateway waits for it", error, server.cure)
            was_up = False
        await wait_or_stop(stop, max(_WATCH_INTERVAL, server.pause))
    await http.close()


def watch_url(config: Config, health_path: str) -> None:
    """Watch the server at `engine.url` until SIGTERM or SIGINT. `health_path`: as for `HttpClient`."""
    server = server_at_url(config)
    assert server is not None, "the settings are validated"
    http = HttpClient(server.url, health_path, api_key=config.engine.api_key)
    asyncio.run(watch_server(http, server))


def _program_logger(name: str, path: Path) -> logging.Logger:
    """Return a logger that writes lines without prefix to a rotating file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    logger = logging.getLogger(f"{__name__}.{name}")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = LogFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    path.chmod(0o600)
    logger.addHandler(handler)
    return logger


def run_python(
    python: str, code: str, *, within: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run code in another Python interpreter. Raises `EngineError` if the interpreter cannot be run.

    `within`: seconds after which it is killed, with the processes that it started; then raises `TimeoutError`.
    """
    command = [python, "-c", code]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A separate process group, so that it can be killed as a whole.
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(
            f"engine.python {python!r} cannot be run ({error.strerror}). Give a Python interpreter"
        ) from None
    try:
        output, errors = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        _kill_program(process)
        raise TimeoutError(f"{python} did not end within {within:g} s") from None
    except BaseException:
        # Ctrl-C does not reach its session.
        _kill_program(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _kill_program(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a program. Does not wait for one that the kernel cannot end yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_DRAIN_TIMEOUT)
    for stream in (process.stdout, process.stderr):
        # A process that left the group may hold the other end.
        if stream is not None:
            stream.close()


def command_line(
    engine: EngineConfig, module: str, flags: Mapping[str, str], switches: Sequence[str]
) -> list[str]:
    """Return `python -m module` with its flags; `engine.args` are last, so that they override ours."""
    options = [part for name, value in flags.items() for part in (f"--{name}", value)]
    return [
        engine.python or sys.executable,
        "-m",
        module,
        *options,
        *(f"--{name}" for name in switches),
        *engine.args,
    ]


def model_location(path: str) -> str:
    """Return `model.path` for another program: an absolute folder, or the hub id."""
    folder = local_model_folder(path)
    return path if folder is None else str(folder.resolve())


def dtype_flag(wanted: str, model: str) -> str:
    """Return the dtype flag. `auto` keeps a float32 checkpoint, which servers would round, unlike the trainer."""
    if wanted != "auto":
        return wanted
    file = Path(model) / "config.json"
    if not file.is_file():
        return "auto"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return "float32" if (config.get("dtype") or config.get("torch_dtype")) == "float32" else "auto"


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers: (0, 5, 14) for `0.5.14.post1+cu130`."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])
