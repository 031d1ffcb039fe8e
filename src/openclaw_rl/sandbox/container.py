"""Box in a container of Docker or Podman, by their command-line programs, also on gVisor's kernel (`runsc`).

The container's first process reads from this program and ends when the pipe closes, so a container never outlives its
owner; the engine then removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import resource
import secrets
from pathlib import Path

from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import GATEWAY_FOLDER, HOME_FOLDER, BoxLimits, BoxRoot
from openclaw_rl.sandbox.box_commands import BOX_PATH, CommandBox
from openclaw_rl.sandbox.box_lease import BoxLease
from openclaw_rl.sandbox.box_service import ServiceInput
from openclaw_rl.sandbox.gateway_relay import GatewayRelay
from openclaw_rl.sandbox.output_buffer import OutputBuffer, OutputReceiver

_START_SECONDS = 60.0
# For the engine, beyond a command's own time limit.
_EXTRA_SECONDS = 10.0
_END_SECONDS = 0.5
# Statuses of a command whose container has ended.
_KILLED = (137, 255)
_READ_BYTES = 2**16
# Of gVisor's kernel, which count as processes of the container.
_RUNTIME_THREADS = 100
# Podman lowers its own limit to this number.
_PODMAN_PROCESSES = 32768
# Linux passes at most 128 KiB in one argument.
_MAX_SCRIPT_BYTES = 120_000
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
# It also waits for orphans.
_FIRST_PROCESS = "echo ready; exec 3<&0; cat <&3 >/dev/null & wait $!"
_RUN_LIMITED = (
    "shell=/bin/sh; [ -x /bin/bash ] && shell=/bin/bash; ulimit -c 0; exec timeout -s KILL "
    '"$0" "$shell" -c "$1"'
)


class ContainerBox(CommandBox):
    """A box in a container. `program`: docker or podman; `runtime`: another OCI runtime, such as `runsc`."""

    def __init__(
        self, root: BoxRoot, limits: BoxLimits, *, program: str, runtime: str | None = None
    ) -> None:
        super().__init__(root, limits)
        if root.image is None or not _IMAGE_NAME.fullmatch(root.image):
            raise SandboxError(f"a box of {program} needs the name of an image, got {root.image!r}")
        if root.system is not None:
            raise SandboxError(
                f"a box of {program} starts from an image, not from the folder {root.system}"
            )
        self._program = [program]
        if program == "podman" and not Path("/run/systemd/system").is_dir():
            self._program += ["--cgroup-manager", "cgroupfs"]
        # Podman leaves making a network to the runtime, none included.
        if runtime is not None and program == "podman":
            self._program += ["--runtime", runtime, "--runtime-flag", "network=none"]
        self._runtime = runtime
        self._name = f"openclaw-rl-box-{secrets.token_hex(8)}"
        self._process: asyncio.subprocess.Process | None = None
        self._lease: BoxLease | None = None
        self._relay: GatewayRelay | None = None
        self._lifetime: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        if self._process is not None:
            raise SandboxError("the box was opened before: make a new one")
        try:
            gateway = await self._open_relay()
            self._process = await asyncio.create_subprocess_exec(
                *self._program,
                *self._run_args(gateway),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            await self._wait_until_ready(self._process)
        except BaseException as error:
            # Also when it is cancelled: no box is left half open.
            await self.close()
            if isinstance(error, FileNotFoundError):
                raise SandboxError(
                    f"{self._program[0]} is not installed, or not on PATH"
                ) from error
            raise
        self._lifetime = asyncio.get_running_loop().call_later(
            self.limits.lifetime, self._end_container
        )

    async def _close_box(self) -> None:
        if self._lifetime is not None:
            self._lifetime.cancel()
        if self._relay is not None:
            await self._relay.close()
        if self._process is not None and self._process.returncode is None:
            await self._call_program("kill", "--signal", "KILL", self._name)
            self._end_container()
            try:
                await asyncio.wait_for(self._process.wait(), _EXTRA_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
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
        if self._process is None or self._process.returncode is not None:
            raise BoxLost("the box has ended: open a new one")
        if len(script.encode(errors="surrogateescape")) > _MAX_SCRIPT_BYTES:
            raise ValueError(
                f"the command is longer than {_MAX_SCRIPT_BYTES} bytes: put it into a file of the box"
            )
        began = asyncio.get_running_loop().time()
        args = [
            "exec",
            "--interactive",
            self._name,
            "/bin/sh",
            "-c",
            _RUN_LIMITED,
            str(math.ceil(time_limit)),
            script,
        ]
        code = await self._follow_program(
            args, (output, errors), source, time_limit + _EXTRA_SECONDS
        )
        timed_out = code == 137 and asyncio.get_running_loop().time() - began >= time_limit
        if code in _KILLED and await self._has_ended(self._process):
            raise BoxLost(
                "the box ended while a command ran: its lifetime was over, or it used up its memory"
            )
        return code, timed_out

    @staticmethod
    async def _has_ended(process: asyncio.subprocess.Process) -> bool:
        """Return whether the container ends now: its program reports that a moment after the command's."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        return process.returncode is not None

    async def _follow_program(
        self,
        args: list[str],
        receivers: tuple[OutputReceiver, OutputReceiver],
        source: Path | ServiceInput | None,
        seconds: float,
    ) -> int:
        """Run the container program, read its outputs until it ends, and return its exit status."""
        channel = source if isinstance(source, ServiceInput) else None
        with contextlib.ExitStack() as stack:
            stdin = asyncio.subprocess.DEVNULL
            if channel is not None:
                stdin, written = os.pipe()
                stack.callback(os.close, written)
                stack.enter_context(channel.attached_to(written))
            elif isinstance(source, Path):
                stdin = os.dup(
                    stack.enter_context(await asyncio.to_thread(source.open, "rb")).fileno()
                )
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._program,
                    *args,
                    stdin=stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
            finally:
                if source is not None:
                    os.close(stdin)
            return await self._read_program(process, receivers, seconds)

    @staticmethod
    async def _read_program(
        process: asyncio.subprocess.Process,
        receivers: tuple[OutputReceiver, OutputReceiver],
        seconds: float,
    ) -> int:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(
                    _receive_output(process, process.stdout, receivers[0]),
                    _receive_output(process, process.stderr, receivers[1]),
                )
                return await process.wait()
        except TimeoutError:
            return 137
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _open_relay(self) -> Path | None:
        """Listen on a socket that every user may open: which one the container's is here, its engine decides.

        Nobody else can list the folder above.
        """
        if self.root.gateway is None:
            return None
        self._lease = BoxLease.acquire(self.root.user_id)
        self._relay = GatewayRelay(*self.root.gateway)
        await self._relay.open(self._lease.folder / "gateway", None)
        return self._lease.folder / "gateway"

    def _run_args(self, gateway: Path | None) -> list[str]:
        limits = self.limits
        user = str(self.root.user_id)
        args = [
            "run",
            "--rm",
            "--interactive",
            "--pull",
            "never",
            "--name",
            self._name,
            "--hostname",
            "box",
        ]
        if self._runtime is not None and self._program[0] == "docker":
            args += ["--runtime", self._runtime]
        args += [
            "--network",
            "none",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
        ]
        args += [
            "--user",
            f"{user}:{user}",
            "--memory",
            str(limits.memory),
            "--memory-swap",
            str(limits.memory),
        ]
        threads = limits.processes + (_RUNTIME_THREADS if self._runtime else 0)
        args += ["--pids-limit", str(threads), "--shm-size", str(limits.shared_memory)]
        args += ["--ulimit", f"nofile={limits.open_files}:{limits.open_files}"]
        args += ["--ulimit", f"cpu={limits.cpu_seconds}:{limits.cpu_seconds}"]
        # Its own default needs a capability that it may not have.
        if self._program[0] == "podman":
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            most = (
                _PODMAN_PROCESSES
                if hard == resource.RLIM_INFINITY
                else min(hard, _PODMAN_PROCESSES)
            )
            args += ["--ulimit", f"nproc={most}:{most}"]
        for name, value in {"PATH": BOX_PATH, "HOME": HOME_FOLDER, "LANG": "C.UTF-8"}.items():
            args += ["--env", f"{name}={value}"]
        for folder in ("/tmp", HOME_FOLDER, *self.root.writable):
            args += ["--tmpfs", f"{folder}:rw,exec,nosuid,nodev,mode=1777,size={limits.disk}"]
        mounts = dict(self.root.read_only)
        if gateway is not None:
            mounts[GATEWAY_FOLDER] = gateway
        for path, source in mounts.items():
            args += ["--mount", f"type=bind,source={source},target={path},readonly"]
        return [*args, str(self.root.image), "/bin/sh", "-c", _FIRST_PROCESS]

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            raise SandboxError(
                f"{self._program[0]} started no container within {_START_SECONDS:g} s"
            ) from None
        if line.strip() != b"ready":
            message = (await process.stderr.read(4000)).decode(errors="replace").strip()
            raise SandboxError(
                f"{self._program[0]} started no container: {message or 'it said nothing'}"
            )

    async def _call_program(self, *args: str) -> None:
        discarded = OutputBuffer(0), OutputBuffer(0)
        await self._follow_program(list(args), discarded, None, _EXTRA_SECONDS)

    def _end_container(self) -> None:
        """Close the pipe of the container's first process, which then ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


async def _receive_output(
    process: asyncio.subprocess.Process, stream: asyncio.StreamReader, receiver: OutputReceiver
) -> None:
    while data := await stream.read(_READ_BYTES):
        receiver.add_bytes(data)
        if receiver.is_full():
            process.kill()
            return
