"""One worker of the supervisor: its process, its output, its crashes, and whether it is parked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

import click

from openclaw_rl.common.printable import to_printable
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.crash_history import (
    OWN_ERROR,
    RECOVERY_SECONDS,
    CrashHistory,
    WorkerOutput,
    crash_cure,
    crash_reason,
    describe_exit,
    loaded_files_state,
)
from openclaw_rl.supervisor.hang_verdict import Hang, HangKind
from openclaw_rl.supervisor.heartbeat_monitor import HeartbeatMonitor
from openclaw_rl.supervisor.worker_end import (
    KillReason,
    count_memory_kills,
    describe_kill,
    find_cause,
)

TRACEBACK_SIGNAL = signal.SIGUSR1
"""On it, a worker prints what each of its threads does."""
# Seconds for that, before a worker that hangs is killed.
TRACEBACK_SECONDS = 2.0
log = logging.getLogger("openclaw_rl.run")


class WorkerProcess:
    """A worker: at most one process at a time, and what is known of the earlier ones."""

    def __init__(
        self, name: str, config: Config, *, listeners: Sequence[socket.socket] = ()
    ) -> None:
        """`listeners`: bound sockets for the process. They outlive it, so that clients of the next one only wait."""
        self.name = name
        self._config = config
        self._listeners = listeners
        self.process: asyncio.subprocess.Process | None = None
        self.monitor = self._new_monitor()
        self.output = WorkerOutput()
        self.crashes = CrashHistory()
        # Why the supervisor killed the process.
        self.kill_reason: KillReason | None = None
        # Of the whole machine, when the process was started.
        self._memory_kills = 0
        # The supervisor ended the process because a file that it loads has changed.
        self.is_replaced = False
        # Monotonic seconds; when a crashed worker is started again.
        self.restart_at = 0.0
        # Monotonic seconds.
        self.started_at = 0.0
        self._files_state = loaded_files_state(config, name)

    def _new_monitor(self) -> HeartbeatMonitor:
        return HeartbeatMonitor(
            hang=self._config.run.heartbeat_timeout, start=self._config.run.startup_timeout
        )

    @property
    def pid(self) -> int | None:
        """Process id while the process runs, else None."""
        return (
            self.process.pid
            if self.process is not None and self.process.returncode is None
            else None
        )

    @property
    def last_pid(self) -> int | None:
        """Process id of the newest process, running or not."""
        return None if self.process is None else self.process.pid

    async def run_once(self, *, echo: bool) -> int:
        """Start the process, read its output until it ends, and return its exit status.

        `echo`: print each line with the worker's name. The process ends with this one, even if this one is killed.
        """
        try:
            await self._start()
        except OSError as error:
            # E.g. no memory or no process id is left: the other workers continue.
            self.output.add_line(
                f"{OWN_ERROR}the process cannot be started: {error}. Free memory or end processes"
            )
            return 1
        return await self._read_output(echo=echo)

    async def _start(self) -> None:
        # The cause of the crashes may be gone.
        if self.has_changed_files():
            self.crashes = CrashHistory()
        self._files_state = loaded_files_state(self._config, self.name)
        self.monitor = self._new_monitor()
        self.output = WorkerOutput()
        self.is_replaced = False
        self.kill_reason = None
        self._memory_kills = count_memory_kills()
        self.started_at = time.monotonic()
        descriptors = [listener.fileno() for listener in self._listeners]
        self.process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "openclaw_rl",
                "worker",
                self.name,
                f"--with-parent={os.getpid()}",
                *(f"--listen-on={descriptor}" for descriptor in descriptors),
            ),
            pass_fds=descriptors,
            env=settings.to_environment(self._config, self.name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        log.debug("%s: process %d started", self.name, self.process.pid)

    async def _read_output(self, *, echo: bool) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        while True:
            try:
                raw = await self.process.stdout.readline()
            except ValueError:
                # A line over the reader's limit is skipped.
                continue
            if not raw:
                return await self.process.wait()
            line = click.unstyle(raw.decode(errors="replace")).rstrip()
            self.output.add_line(line)
            if echo:
                # It may be a file on a full disk.
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"{self.name:>8} | {to_printable(line)}\n")

    def kill(self, reason: KillReason) -> None:
        """Kill a process that hangs. SIGTERM would need the event loop that hangs.

        One that is not stopped first prints where each of its threads is.
        """
        if self.process is None or self.pid is None or self.kill_reason is not None:
            return
        self.kill_reason = reason
        log.warning("%s: %s. It is killed", self.name, describe_kill(reason))
        delay = 0.0
        with contextlib.suppress(ProcessLookupError):
            if isinstance(reason, Hang) and reason.kind is not HangKind.STOPPED:
                self.process.send_signal(TRACEBACK_SIGNAL)
                delay = TRACEBACK_SECONDS
        asyncio.get_running_loop().call_later(delay, self._kill_process, self.process)

    def _kill_process(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    def record_crash(self, code: int, delays: tuple[float, float]) -> float:
        """Record the end of the process, and return the seconds until the next start. `delays`: first and longest."""
        kill = self.kill_reason
        cause = find_cause(code, kill, out_of_memory=count_memory_kills() > self._memory_kills)
        exit_text = describe_exit(code) if kill is None else describe_kill(kill)
        self.crashes.record_crash(
            exit_text,
            cause,
            crash_reason(self._config, self.name, cause, exit_text, self.output),
            crash_cure(self._config, self.name, cause, self.output),
            recovered=kill is None and self._has_recovered,
        )
        delay = self.crashes.restart_delay(*delays)
        self.restart_at = time.monotonic() + delay
        return delay

    @property
    def _has_recovered(self) -> bool:
        """Whether it ran for `RECOVERY_SECONDS` after its start, which takes longer the larger its model is."""
        started_at = self.monitor.started_at
        return started_at is not None and time.monotonic() - started_at >= RECOVERY_SECONDS

    def has_crashed(self) -> bool:
        """Return whether the worker crashed, and neither ran for `RECOVERY_SECONDS` since nor has other files now."""
        return self.crashes.count > 0 and (
            self.pid is None or not (self._has_recovered or self.has_changed_files())
        )

    def is_parked(self) -> bool:
        """Return whether a crashed worker still waits for its next start. A change of a loaded file ends the wait."""
        return (
            self.crashes.count > 0
            and self.pid is None
            and time.monotonic() < self.restart_at
            and not self.has_changed_files()
        )

    def has_changed_files(self) -> bool:
        """Return whether a file has changed that the process loaded at its start, such as a plug-in."""
        return loaded_files_state(self._config, self.name) != self._files_state

    def parked_note(self) -> str:
        """Return the note of a worker that waits for its next start."""
        seconds = max(0.0, self.restart_at - time.monotonic())
        return f"parked, starts again in {seconds:.0f} s: {self.crashes.describe()}"
