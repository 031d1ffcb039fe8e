"""Commands, limits, transfers and the end of a box."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.conftest import LIMITS, InBox
from tests.sandbox.test_escapes import processes_with

from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox import box_lease
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot
from openclaw_rl.sandbox.box_lease import BoxLease, leases_folder, sweep_leases
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.control_groups import find_parents, plan_groups
from openclaw_rl.sandbox.gateway_relay import forward_gateway_port


def wait_until_gone(*words: str) -> None:
    """Wait until the kernel has ended the processes that were killed."""
    until = time.monotonic() + 240
    while processes_with(*words):
        assert time.monotonic() < until
        time.sleep(0.02)


def with_box(
    use: Callable[[BubblewrapBox], Awaitable[Any]], root: BoxRoot | None = None, **limits: Any
) -> Any:
    """Return what `use` returns for a box that is open."""

    async def use_box() -> Any:
        box = BubblewrapBox(root or BoxRoot(), replace(LIMITS, **limits))
        try:
            await box.open()
            return await use(box)
        finally:
            await asyncio.gather(box.close(), box.close())
            await box.close()

    return asyncio.run(use_box())


def test_a_command_has_its_folder_variables_status_and_streams() -> None:
    async def use(box: BubblewrapBox) -> None:
        result = await box.run(
            'pwd; echo "$A"; echo wrong >&2; exit 7', cwd="/tmp", env={"A": "b'c $d\nnext"}
        )
        assert (result.exit_code, result.stdout, result.stderr) == (
            7,
            b"/tmp\nb'c $d\nnext\n",
            b"wrong\n",
        )
        assert (await box.run("kill -9 $$")).exit_code == 137
        assert (await box.run("true", cwd="/missing")).exit_code == 126
        assert (await box.run("cat")).exit_code == 0, "standard input is empty"
        for bad in ({"A B": "x"}, {"A": "\0"}):
            with pytest.raises(ValueError, match="environment variable"):
                await box.run("true", env=bad)

    with_box(use)


def test_files_and_processes_stay_between_commands_and_commands_run_side_by_side() -> None:
    async def use(box: BubblewrapBox) -> None:
        await box.run(
            "head -c 8 /dev/urandom >kept; mkfifo ask; (read line <ask; echo $line >heard) >/dev/null 2>&1 &"
        )
        await box.run("echo hello >ask; sleep 0.2")
        assert (await box.run("wc -c <kept; cat heard")).stdout == b"8\nhello\n"
        # Each waits for all others.
        meet = "touch at{n}; until [ $(ls at* | wc -l) = 4 ]; do sleep 0.05; done"
        results = await asyncio.gather(
            *(box.run(meet.format(n=n), time_limit=240) for n in range(4))
        )
        assert [result.exit_code for result in results] == [0] * 4

    with_box(use)


def test_a_command_that_takes_too_long_is_killed_with_its_children_and_the_box_stays() -> None:
    async def use(box: BubblewrapBox) -> None:
        result = await box.run("echo begun; sleep 431.5 & sleep 431.5", time_limit=0.5)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"begun\n")
        wait_until_gone("431.5")
        assert (await box.run("echo here")).stdout == b"here\n"

    with_box(use)


def test_a_program_answers_lines_until_it_ends() -> None:
    async def use(box: BubblewrapBox) -> None:
        echo = await box.start_service("echo begun; cat", line_limit=300_000)
        assert await echo.read_line(10) == b"begun"
        long = b"x" * 300_000
        assert [await echo.ask(line, 10) for line in (b"one", long, b"two")] == [
            b"one",
            long,
            b"two",
        ]
        assert await echo.ask(long + b"x", 10) is None, "a line above the limit ends it"
        assert (await box.run("echo here")).stdout == b"here\n"
        silent = await box.start_service("cat >/dev/null; echo why >&2")
        assert (await silent.ask(b"one", 0.1), silent.has_ended) == (None, False)
        assert silent.read_end(0.1) == "not within 0.1 s"
        deaf = await box.start_service("sleep 300")
        assert (await deaf.ask(b"x" * 300_000, 0.2), deaf.has_ended) == (None, False), (
            "its pipe is full"
        )
        prompt = await box.start_service("cat")
        assert await prompt.ask(b"at once", 10) == b"at once"
        ended = await box.start_service("echo why >&2; exit 3")
        assert (await ended.read_line(10), ended.exit_code, ended.read_end(10)) == (None, 3, "why")
        assert await ended.ask(b"one", 10) is None
        await box.start_service("cat")
        await box.close()
        assert (await silent.ask(b"one", 10), silent.has_ended) == (None, True)

    with_box(use)


@pytest.mark.parametrize(
    "flood", ["yes", "setsid yes & sleep 300", "head -c 3000000 /dev/zero; sleep 300"]
)
def test_a_program_that_writes_without_being_asked_is_ended(flood: str) -> None:
    async def use(box: BubblewrapBox) -> None:
        service = await box.start_service(flood)
        until = time.monotonic() + 240
        while not service.has_ended:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        assert service.exit_code == 137

    with_box(use)


def test_output_is_bounded_and_keeps_both_ends() -> None:
    async def use(box: BubblewrapBox) -> None:
        result = await box.run("echo first; head -c 3000000 /dev/zero; echo last")
        assert len(result.stdout) == 1000
        assert result.stdout.startswith(b"first\n")
        assert result.stdout.endswith(b"last\n")
        assert result.truncated == 3_000_000 + 11 - 1000

    with_box(use, output=1000)


def test_processes_that_a_command_left_cannot_delay_its_owner() -> None:
    async def use(box: BubblewrapBox) -> None:
        result = await box.run("yes & echo done >&2", time_limit=240)
        assert result.stderr == b"done\n"
        assert not result.timed_out

    with_box(use)


def test_a_command_that_is_cancelled_at_once_does_not_stop_the_shell() -> None:
    async def use(box: BubblewrapBox) -> None:
        for _ in range(30):
            task = asyncio.create_task(box.run("sleep 5"))
            await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await box.run("echo here", time_limit=10)).stdout == b"here\n"

    with_box(use)


def test_limits_of_processor_time_and_open_files() -> None:
    async def use(box: BubblewrapBox) -> None:
        endless = await box.run("while :; do :; done", time_limit=240)
        assert endless.exit_code != 0
        assert not endless.timed_out
        assert (await box.run("ulimit -n")).stdout == b"32\n"
        assert (await box.run("ulimit -n 64")).exit_code != 0

    with_box(use, cpu_seconds=1, open_files=32)


def test_without_control_groups_each_process_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.sandbox.bubblewrap.make_groups", lambda *_: set())

    async def use(box: BubblewrapBox) -> None:
        assert box.held_limits == set()
        assert (await box.run("/usr/bin/python3 -c 'bytearray(1 << 30)'")).exit_code == 1
        assert (
            await box.run("for n in $(seq 100); do sleep 1 & done", time_limit=10)
        ).stderr.count(b"fork") >= 1

    with_box(use)


def test_a_box_ends_after_its_lifetime() -> None:
    async def use(box: BubblewrapBox) -> None:
        with pytest.raises(BoxLost):
            await box.run("sleep 600", time_limit=600)
        with pytest.raises(BoxLost):
            await box.run("true")

    with_box(use, lifetime=0.5)


def test_a_box_ends_even_if_bubblewrap_is_not_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process 1 that did not yet ask the kernel to end with its parent, because it starts the shell first."""

    async def close_at_once() -> None:
        box = BubblewrapBox(BoxRoot(), LIMITS)
        await box.open()
        monkeypatch.setattr(box._process, "kill", lambda: None)
        await asyncio.wait_for(box.close(), 300)

    asyncio.run(close_at_once())


def test_boxes_whose_opening_is_cancelled_leave_nothing() -> None:
    async def cancel_after(seconds: float) -> None:
        box = BubblewrapBox(BoxRoot(), LIMITS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(box.open(), seconds)
        await asyncio.wait_for(box.close(), 300)
        names.extend([box._lease.folder.name] if box._lease is not None else [])

    async def cancel_many() -> None:
        for number in range(10):
            await asyncio.gather(*(cancel_after(0.004 * (4 * number + part)) for part in range(4)))

    names = list[str]()  # which are arguments of their processes
    asyncio.run(cancel_many())
    assert len(names) > 10
    assert not {folder.name for folder in leases_folder().iterdir()} & set(names)
    wait_until_gone(*names)


def test_a_shell_that_was_killed_inside_ends_the_box() -> None:
    async def use(box: BubblewrapBox) -> None:
        with pytest.raises(BoxLost):
            await box.run("kill -9 -1; kill -9 2", time_limit=3)

    with_box(use)


def test_a_cancelled_command_is_killed() -> None:
    async def use(box: BubblewrapBox) -> None:
        task = asyncio.create_task(box.run("sleep 431.75", time_limit=300))
        while processes_with("431.75") == []:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        wait_until_gone("431.75")

    with_box(use)


def test_the_size_of_files_taken_out_is_limited(public_folder: Path) -> None:
    """A sparse file is small in the box and large outside; many names are refused, too."""

    async def use(box: BubblewrapBox) -> None:
        await box.run('/usr/bin/python3 -c \'open("/work/sparse", "w").truncate(1 << 40)\'')
        with pytest.raises(SandboxError, match="larger than the limit"):
            await box.get("/work/sparse", public_folder / "sparse")

    with_box(use)
    assert sum(p.stat().st_size for p in public_folder.rglob("*") if p.is_file()) <= 2 * LIMITS.disk


def test_folders_go_in_and_out(public_folder: Path) -> None:
    source = public_folder / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "a" / "run.sh").chmod(0o755)

    async def use(box: BubblewrapBox) -> None:
        await box.put(source, "/work/b c/d")
        assert (await box.run("'/work/b c/d/a/run.sh'")).stdout == b"ran\n"
        await box.get("/work/b c", public_folder / "out")
        with pytest.raises(SandboxError, match="No such file"):
            await box.get("/work/missing", public_folder / "missing")

    with_box(use)
    copied = public_folder / "out" / "d" / "a" / "run.sh"
    assert copied.read_text() == "#!/bin/sh\necho ran\n"
    assert copied.stat().st_mode & 0o100


def test_a_box_reaches_the_gateway_and_no_other_port(in_box: InBox) -> None:
    code = """
import socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/gateway/gateway.sock")
    connection.sendall(b"ping")
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100).decode())
"""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"pong " + await reader.read())
        writer.close()

    async def talk() -> tuple[bytes, bytes]:
        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = gateway.sockets[0].getsockname()[1]
        box = BubblewrapBox(BoxRoot(gateway=("127.0.0.1", port)), LIMITS)
        try:
            await box.open()
            said = await box.run(f"/usr/bin/python3 -c '{code}'")
            direct = await box.run(
                f"echo x 2>/dev/null >/dev/tcp/127.0.0.1/{port} && echo connected; true"
            )
            return said.stdout, direct.stdout
        finally:
            await box.close()
            gateway.close()

    assert asyncio.run(talk()) == (b"pong ping\n", b"")


def test_a_port_of_the_box_leads_to_the_gateway() -> None:
    """For clients that know URLs only: the box has this port, and nothing else is on the other end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async def talk() -> bytes:
        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        box = BubblewrapBox(
            BoxRoot(gateway=("127.0.0.1", gateway.sockets[0].getsockname()[1])), LIMITS
        )
        try:
            await box.open()
            url = await forward_gateway_port(box)
            code = f"import urllib.request as r; print(r.urlopen('{url}/v1/models', timeout=240).read().decode())"
            return (await box.run(f'/usr/bin/python3 -c "{code}"')).stdout
        finally:
            await box.close()
            gateway.close()

    assert asyncio.run(talk()) == b"hello\n"

    async def without_grant(box: BubblewrapBox) -> None:
        with pytest.raises(SandboxError, match="No such file"):
            await forward_gateway_port(box)

    with_box(without_grant)


def test_a_folder_can_be_the_root_of_a_box(public_folder: Path) -> None:
    """Its links stay links: one to a file of this machine leads nowhere in the box."""
    root = public_folder / "root"
    for program in ("sh", "setsid", "cat"):
        path = Path(shutil.which(program) or "")
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for file in (f"/bin/{program}", *(word for word in listed.split() if word.startswith("/"))):
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path if file.startswith("/bin/") else file, target)
    (root / "etc").mkdir()
    (root / "etc" / "own").write_text("of the folder")
    (root / "etc" / "link").symlink_to(public_folder / "secret")
    (public_folder / "secret").write_text("secret")

    async def use(box: BubblewrapBox) -> bytes:
        return (
            await box.run(
                "cat /etc/own; readlink /etc/link >&2; cat /etc/link; echo 1 >/work/a; cat /work/a"
            )
        ).stdout

    assert with_box(use, BoxRoot(system=root)) == b"of the folder1\n"


OWNER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox

async def main():
    box = BubblewrapBox(BoxRoot(), BoxLimits())
    await box.open()
    await box.run("setsid sleep 431.25 >/dev/null 2>&1 & sleep 431.25 >/dev/null 2>&1 & echo x >/work/file")
    print("ready", flush=True)
    await box.run("sleep 431.25", time_limit=100)

asyncio.run(main())
"""


def test_nothing_is_left_after_the_owner_was_killed(public_folder: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(public_folder)], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        folder = next(leases_folder().iterdir())
        groups = [Path(line) for line in (folder / "control_groups").read_text().splitlines()]
        assert len(processes_with("431.25", folder.name)) >= 4
        assert sweep_leases() == 0, "its owner lives"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_until_gone("431.25", folder.name)
    assert str(public_folder) not in Path("/proc/self/mountinfo").read_text()
    assert sweep_leases() == 1
    assert not folder.exists()
    assert [group for group in groups if group.exists()] == []


def test_a_box_that_was_half_open_is_ended_by_the_next_owner() -> None:
    """As bubblewrap's second process after the first was killed: it waits, and is in no control group."""
    lease = BoxLease.acquire(os.geteuid())
    os.close(lease._lock)  # as the kernel does for a dead owner
    with subprocess.Popen(
        ["bwrap", "-c", "read x", lease.folder.name], executable="/bin/sh", stdin=subprocess.PIPE
    ) as half:
        while not processes_with(
            lease.folder.name
        ):  # the kernel shows its arguments a moment later
            time.sleep(0.01)
        assert sweep_leases() == 1
        assert half.wait(240) == -signal.SIGKILL


def test_a_lease_that_was_never_locked_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leases_folder() / "begun"
    folder.mkdir()
    assert sweep_leases() == 0
    monkeypatch.setattr(box_lease, "_UNLOCKED_SECONDS", -1.0)
    assert sweep_leases() == 1
    assert not folder.exists()


def test_a_folder_of_leases_that_others_can_write_is_refused(public_folder: Path) -> None:
    folder = leases_folder()
    folder.chmod(0o777)
    with pytest.raises(SandboxError, match="others can write"):
        BoxLease.acquire(os.geteuid())
    folder.chmod(0o711)


def test_the_groups_of_version_two_are_made_beside_our_own(tmp_path: Path) -> None:
    """Against folders as the kernel lays them out; limits by effect: `test_memory_is_bounded`, where groups hold."""
    service = tmp_path / "mount" / "user.slice" / "run.service"
    service.mkdir(parents=True)
    for folder in (service, service.parent):
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text(
            "cpu memory pids\n" if folder != service else ""
        )
    own = tmp_path / "cgroup"
    own.write_text("0::/user.slice/run.service\n")
    parents = find_parents(tmp_path / "mount", own)
    assert (parents.version, parents.folders) == (
        2,
        {"memory": service.parent, "pids": service.parent},
    )
    assert plan_groups(parents, "x") == [service.parent / "openclaw-rl-box-x"]


def test_without_bubblewrap_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    async def open_box() -> None:
        await BubblewrapBox(BoxRoot(), BoxLimits()).open()

    with pytest.raises(SandboxError, match="install your system's package `bubblewrap`"):
        asyncio.run(open_box())


@pytest.mark.skipif(os.geteuid() != 0, reason="only boxes of root have another user")
def test_a_program_that_the_user_of_the_box_cannot_run_is_named(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (public_folder / "bwrap").write_text("#!/bin/sh\n")
    (public_folder / "bwrap").chmod(0o700)
    monkeypatch.setenv("PATH", str(public_folder))

    async def open_box() -> None:
        await BubblewrapBox(BoxRoot(), LIMITS).open()

    with pytest.raises(SandboxError, match="cannot be run by the user of the box"):
        asyncio.run(open_box())


def test_a_box_that_cannot_start_reports_the_reason_and_leaves_nothing() -> None:
    async def open_box() -> None:
        await BubblewrapBox(BoxRoot(read_only={"/data": Path("/missing/folder")}), LIMITS).open()

    with pytest.raises(SandboxError, match="/missing/folder"):
        asyncio.run(open_box())
