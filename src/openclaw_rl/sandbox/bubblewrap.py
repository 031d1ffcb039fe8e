"""Box on bubblewrap: namespaces of its own, no network, files in memory, and a shell inside that starts its commands.

The shell reads requests from a pipe and each command writes to pipes of its own, in a folder that is read-only inside.
Nothing enters the namespaces of a running box: a program of this machine that did could be taken over there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import HOME_FOLDER, BoxLimits, BoxRoot
from openclaw_rl.sandbox.box_commands import CommandBox
from openclaw_rl.sandbox.box_lease import BoxLease, sweep_once, usable_parents
from openclaw_rl.sandbox.box_service import ServiceInput
from openclaw_rl.sandbox.bubblewrap_args import CONTROL_FOLDER, bubblewrap_args, find_bubblewrap
from openclaw_rl.sandbox.control_groups import add_processes, make_groups, plan_groups, process_tree
from openclaw_rl.sandbox.gateway_relay import GatewayRelay
from openclaw_rl.sandbox.output_buffer import OutputBuffer, OutputReceiver
from openclaw_rl.sandbox.root_layers import wrap_in_mounts
from openclaw_rl.sandbox.seccomp_filter import build_filter

# User of this machine for the boxes of root.
_NOBODY = 65534
_START_SECONDS = 20.0
# Until a command that was killed reports its end; else the box is closed.
_KILL_SECONDS = 2.0
# Bubblewrap outside, bubblewrap as process 1, the shell.
_FIRST_PROCESSES = 3
_READ_BYTES = 2**16
_OUTPUT_PIPES = ("output", "errors", "end")
# A process may enlarge its pipe to this size.
_MOST_PIPE_BYTES = 2**20


class BubblewrapBox(CommandBox):
    """A box on bubblewrap. Open it in a thread that lives as long as the box: the kernel ends the box with it."""

    def __init__(self, root: BoxRoot, limits: BoxLimits) -> None:
        super().__init__(root, limits)
        self.held_limits: set[str] = set()
        """The limits, of `memory` and `processes`, that control groups hold for the box as a whole."""
        self._lease: BoxLease | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: asyncio.Future[None] | None = None
        # Process 1 of the box, which all others end with.
        self._first: WatchedProcess | None = None
        self._relay: GatewayRelay | None = None
        self._lifetime: asyncio.TimerHandle | None = None
        self._commands = 0

    async def open(self) -> None:
        if self._lease is not None:
            raise SandboxError("the box was opened before: make a new one")
        program = find_bubblewrap()
        await asyncio.to_thread(sweep_once)
        self._lease = BoxLease.acquire(self._choose_user())
        try:
            control = self._write_control_folder(self._lease.folder)
            gateway = await self._open_relay(self._lease)
            groups = self._make_groups()
            layers = self._lease.folder / "root"
            args = bubblewrap_args(self.root, self.limits, control, gateway, layers)
            self._process = self._start_process(program, args)
            self._ended = WatchedProcess(self._process.pid).ended
            # Takes the kernel 5 to 20 ms.
            first = asyncio.to_thread(add_processes, groups, [self._process.pid])
            await asyncio.gather(first, self._wait_until_ready(self._process))
            # Those that were started meanwhile are among them.
            processes = process_tree(self._process.pid)
            if len(processes) < _FIRST_PROCESSES:
                raise SandboxError(
                    "the first processes of the box were not found in /proc: its limits would not hold"
                )
            self._first = WatchedProcess(processes[1])
            add_processes(groups, processes)
            self._send_request("start")
        except BaseException as error:
            # Also when it is cancelled: no box is left half open.
            await self.close()
            if isinstance(error, ProcessLookupError):
                raise SandboxError("the box ended while it was opened") from error
            raise
        self._lifetime = asyncio.get_running_loop().call_later(self.limits.lifetime, self._kill_box)

    async def _close_box(self) -> None:
        if self._lifetime is not None:
            self._lifetime.cancel()
        if self._relay is not None:
            await self._relay.close()
        self._find_first_process()
        self._kill_box()
        if self._process is not None and self._ended is not None:
            ends = [self._ended] + ([self._first.ended] if self._first is not None else [])
            # A plain await would cancel them with its caller.
            await asyncio.wait(ends)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        if self._lease is not None:
            await asyncio.to_thread(self._lease.release)

    async def _run_script(
        self,
        script: str,
        *,
        time_limit: float,
        output: OutputReceiver,
        errors: OutputReceiver,
        source: Path | ServiceInput | None,
    ) -> tuple[int, bool]:
        if self._lease is None or self._ended is None or self._ended.done():
            raise BoxLost("the box has ended: open a new one")
        self._commands += 1
        number = self._commands
        folder = self._lease.folder / "control" / str(number)
        folder.mkdir(mode=0o755)
        (folder / "command").write_text(script, encoding="utf-8", errors="surrogateescape")
        if isinstance(source, Path):
            await asyncio.to_thread(shutil.copyfile, source, folder / "input")
        channel = source if isinstance(source, ServiceInput) else None
        names = (*_OUTPUT_PIPES, *(["input"] if channel else []))
        try:
            with contextlib.ExitStack() as stack:
                pipes = stack.enter_context(self._open_pipes(folder, names))
                if channel is not None:
                    stack.enter_context(channel.attached_to(pipes[-1]))
                return await self._follow_command(number, pipes, (output, errors), time_limit)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _follow_command(
        self,
        number: int,
        pipes: Sequence[int],
        receivers: tuple[OutputReceiver, OutputReceiver],
        time_limit: float,
    ) -> tuple[int, bool]:
        """Start the command and read its pipes until its exit status has come."""
        loop = asyncio.get_running_loop()
        assert self._ended is not None
        status: asyncio.Future[int] = loop.create_future()
        end = OutputBuffer(16)

        def read_end() -> None:
            _read_pipe(pipes[2], end)
            if b"\n" in end.kept_bytes() and not status.done():
                status.set_result(_parse_status(end.kept_bytes()))

        def read_output(pipe: int, receiver: OutputReceiver) -> None:
            _read_pipe(pipe, receiver)
            if receiver.is_full():
                self._send_request("kill", number)

        for pipe, receiver in zip(pipes, receivers, strict=False):
            loop.add_reader(pipe, read_output, pipe, receiver)
        loop.add_reader(pipes[2], read_end)
        timed_out = False
        try:
            self._send_request("run", number)
            await asyncio.wait(
                (status, self._ended), timeout=time_limit, return_when=asyncio.FIRST_COMPLETED
            )
            if not status.done() and not self._ended.done():
                timed_out = True
                self._send_request("kill", number)
                await asyncio.wait(
                    (status, self._ended),
                    timeout=_KILL_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not status.done():
                    self._kill_box()
                    return 128 + signal.SIGKILL, True
            if not status.done():
                raise BoxLost(
                    "the box ended while a command ran: its lifetime was over, or its shell was killed"
                )
            for pipe, receiver in zip(pipes, receivers, strict=False):
                _drain_pipe(pipe, receiver)
            self._send_request("forget", number)
            return status.result(), timed_out
        finally:
            for pipe in pipes[: len(_OUTPUT_PIPES)]:
                loop.remove_reader(pipe)
            if not status.done():
                self._send_request("kill", number)

    @contextlib.contextmanager
    def _open_pipes(self, folder: Path, names: Sequence[str]) -> Iterator[Sequence[int]]:
        """Make pipes of a command. They are open for reading and writing, so that they never reach an end."""
        assert self._lease is not None
        pipes = []
        try:
            for name in names:
                os.mkfifo(folder / name, 0o600)
                if self._lease.box_user != os.geteuid():
                    os.chown(folder / name, self._lease.box_user, -1)
                pipes.append(os.open(folder / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            yield pipes
        finally:
            for pipe in pipes:
                os.close(pipe)

    def _choose_user(self) -> int:
        """Return the user of this machine for the box. Builds of root install packages, as root."""
        is_build = self.root.layers is not None and self.root.layers.target is not None
        return os.geteuid() if is_build or os.geteuid() != 0 else _NOBODY

    def _write_control_folder(self, lease: Path) -> Path:
        control = lease / "control"
        control.mkdir(mode=0o755)
        user = self.root.user_id
        texts = {
            "box_agent.sh": (ASSETS / "sandbox" / "box_agent.sh").read_text(),
            "run_command.sh": (ASSETS / "sandbox" / "run_command.sh").read_text(),
            "passwd": f"agent:x:{user}:{user}::{HOME_FOLDER}:/bin/sh\n"
            + self._built_accounts("passwd"),
            "group": f"agent:x:{user}:\n" + self._built_accounts("group"),
            "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
        }
        for name, text in texts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o644)
        return control

    def _built_accounts(self, name: str) -> str:
        """Return the lines of a root of layers for other users, or groups, than the one of the box."""
        file = self.root.layers.find_path(f"/etc/{name}") if self.root.layers is not None else None
        if file is None or file.is_symlink() or not file.is_file():
            return ""
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        others = [line for line in lines if f":{self.root.user_id}:" not in line]
        return "".join(f"{line}\n" for line in others)

    async def _open_relay(self, lease: BoxLease) -> Path | None:
        if self.root.gateway is None:
            return None
        self._relay = GatewayRelay(*self.root.gateway)
        await self._relay.open(lease.folder / "gateway", lease.box_user)
        return lease.folder / "gateway"

    def _make_groups(self) -> list[Path]:
        assert self._lease is not None
        parents = usable_parents()
        groups = plan_groups(parents, self._lease.folder.name)
        self._lease.write_groups(groups)
        controllers = make_groups(parents, self._lease.folder.name, self.limits)
        limit_of = {"memory": "memory", "pids": "processes"}
        self.held_limits = {limit_of[controller] for controller in controllers}
        return [group for group in groups if group.exists()]

    def _start_process(self, program: Path, args: list[str]) -> subprocess.Popen[bytes]:
        """Start bubblewrap with an empty environment: process 1 shows its own, and its arguments, to all in the box."""
        assert self._lease is not None
        limits = self.limits
        address_space = "unlimited" if "memory" in self.held_limits else str(limits.memory // 1024)
        agent = [
            "/bin/sh",
            f"{CONTROL_FOLDER}/box_agent.sh",
            str(limits.open_files),
            str(limits.cpu_seconds),
        ]
        agent += [str(limits.processes), address_space, self._lease.folder.name]
        descriptors = {"--args": _pipe_with("\0".join(args).encode() + b"\0")}
        program_bytes = build_filter()
        if program_bytes is not None:
            descriptors["--seccomp"] = _pipe_with(program_bytes)
        flags = [word for flag, number in descriptors.items() for word in (flag, str(number))]
        other_user = self._lease.box_user != os.geteuid()
        command = ["bwrap", *flags, "--", *agent]
        if self.root.layers is not None:
            command = self._mount_layers(program) + command[1:]
            program = Path(command[0])
            other_user = False
        try:
            return subprocess.Popen(
                command,
                executable=program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=tuple(descriptors.values()),
                start_new_session=True,
                user=self._lease.box_user if other_user else None,
                group=self._lease.box_user if other_user else None,
                extra_groups=[] if other_user else None,
            )
        except PermissionError as error:
            raise SandboxError(
                f"{program} cannot be run by the user of the box ({self._lease.box_user}): "
                "install your system's package `bubblewrap`"
            ) from error
        finally:
            for number in descriptors.values():
                os.close(number)

    def _mount_layers(self, program: Path) -> list[str]:
        """Return the start of a command line that mounts the layers of the root and then runs bubblewrap."""
        assert self._lease is not None
        assert self.root.layers is not None
        mounted = self._lease.folder / "root"
        memory = self._lease.folder / "changes"
        mounted.mkdir(mode=0o755)
        memory.mkdir(mode=0o711)
        commands = self.root.layers.mount_command(mounted, memory, self.limits.disk)
        user = self._lease.box_user
        return wrap_in_mounts(commands, program, None if user == os.geteuid() else user)

    async def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        assert self._ended is not None
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        os.set_blocking(process.stdout.fileno(), False)
        os.set_blocking(process.stderr.fileno(), False)
        loop.add_reader(process.stdout, ready.set)
        waiter = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait(
                (waiter, self._ended), timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiter.cancel()
            loop.remove_reader(process.stdout)
        if (process.stdout.read() or b"").strip() == b"ready":
            return
        message = (process.stderr.read() or b"").decode("utf-8", "replace").strip()
        cure = ". Expected bubblewrap 0.8 or newer" if "Unknown option" in message else ""
        raise SandboxError(
            f"bubblewrap started no box: {message or f'not ready within {_START_SECONDS:g} s'}{cure}"
        )

    def _send_request(self, action: str, number: int = 0) -> None:
        """Send one line to the shell of the box; a box that does not read them any more is ended."""
        if self._process is None or self._process.stdin is None:
            return
        if self._ended is None or self._ended.done():
            return
        stdin = self._process.stdin.fileno()
        try:
            os.set_blocking(stdin, False)
            os.write(stdin, f"{action} {number}\n".encode())
        except (BlockingIOError, BrokenPipeError):
            self._kill_box()

    def _find_first_process(self) -> None:
        """Find process 1 of a box that was not opened to the end."""
        if self._first is not None or self._process is None:
            return
        if self._ended is None or self._ended.done():
            return
        with contextlib.suppress(OSError):
            pids = process_tree(self._process.pid)
            # Process 0 of the tree is bubblewrap itself.
            if len(pids) > 1:
                self._first = WatchedProcess(pids[1])

    def _kill_box(self) -> None:
        """Kill process 1 of the box, with which the kernel kills all others, and bubblewrap.

        Process 1 asks the kernel to end with bubblewrap, but only after it has started the shell: the box would stay.
        """
        if self._first is not None:
            self._first.kill()
        if self._process is not None and self._ended is not None and not self._ended.done():
            self._process.kill()


class WatchedProcess:
    """A process by a descriptor, so that its number cannot come to mean another. `ended`: done when it has.

    Process 1 of a box ends after all others. Raises `ProcessLookupError` if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        self._loop.add_reader(self._descriptor, self._note_end)

    def kill(self) -> None:
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _note_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.ended.set_result(None)


def _read_pipe(pipe: int, receiver: OutputReceiver) -> bool:
    """Read what a pipe holds now, at most 64 KiB; return whether there was any."""
    try:
        data = os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return False
    receiver.add_bytes(data)
    return bool(data)


def _drain_pipe(pipe: int, receiver: OutputReceiver) -> None:
    """Read what the command had written at its end; no more, as what it left running may write for ever."""
    for _ in range(_MOST_PIPE_BYTES // _READ_BYTES):
        if not _read_pipe(pipe, receiver):
            return


def _parse_status(line: bytes) -> int:
    """Return an exit status that the box reports; 255 for other text, as a command may write to the pipe itself."""
    first = line.split(b"\n")[0]
    return int(first) & 255 if first.isdigit() and len(first) <= 3 else 255


def _pipe_with(data: bytes) -> int:
    """Return the read end of a pipe that holds `data`, at most 64 KiB."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        os.write(writer, data)
    finally:
        os.close(writer)
    return reader
