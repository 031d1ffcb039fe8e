"""Escapes from a box: each is tried, and each fails."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.conftest import LIMITS, InBox

from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import MEBIBYTE, BoxRoot
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.seccomp_filter import AUDIT_ARCHITECTURE, REFUSED_CALLS

KEY = "sk-owner-5f1d2c7a"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def key_file(public_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The owner's key: in the environment, and in a file that any process of this machine may read."""
    monkeypatch.setenv("OPENCLAW_API_KEY", KEY)
    file = public_folder / "api_key"
    file.write_text(KEY)
    file.chmod(0o644)
    return file


def python(code: str) -> str:
    """Return the command that runs code, indented or not, on the box's Python."""
    return f"/usr/bin/python3 - <<'END'\n{textwrap.dedent(code)}\nEND"


def test_the_owners_key_is_nowhere(in_box: InBox, key_file: Path) -> None:
    look = f"cat {key_file}; env; cat /proc/*/environ /proc/*/cmdline; cat /proc/[0-9]*/fd/[3-9]* </dev/null"
    search = (
        "grep -rs sk-owner /etc /home /run /tmp /work /root /var /dev/shm /proc/[0-9]*/mountinfo"
    )
    seen = in_box(f"timeout 5 sh -c '{look}; {search}'")
    assert KEY.encode() not in seen.stdout + seen.stderr
    assert b"PATH=/usr" in seen.stdout, "the commands ran"


def test_process_one_has_neither_variables_nor_arguments_of_the_owner(
    in_box: InBox, key_file: Path
) -> None:
    seen = in_box("tr '\\0' '\\n' </proc/1/environ; echo; echo ---; tr '\\0' ' ' </proc/1/cmdline")
    variables, arguments = seen.stdout.decode().split("---")
    assert variables.strip() == ""
    assert arguments.split()[0] == "bwrap"
    assert "/tmp" not in arguments
    assert "bind" not in arguments


BYPASSES = (
    "import math, os\nos.system('{command}')",
    "import sys\nsys.modules['os'].system('{command}')",
    "import random\nrandom._os.system('{command}')",
)


@pytest.mark.parametrize("code", BYPASSES)
def test_code_that_passes_a_blocklist_reaches_nothing(
    code: str, in_box: InBox, key_file: Path
) -> None:
    """The three programs run, as nothing reads their text; they find neither the key nor a file to write."""
    marker = key_file.parent / "marker"
    command = f"echo ran; cat {key_file}; env; echo x > {marker}; echo x > {ROOT}/marker"
    seen = in_box(python(code.format(command=command)))
    assert b"ran" in seen.stdout
    assert KEY.encode() not in seen.stdout + seen.stderr
    assert not marker.exists()
    assert not (ROOT / "marker").exists()


def test_paths_of_the_host_are_missing(in_box: InBox, key_file: Path) -> None:
    paths = [
        "/root",
        "/var",
        "/sys",
        "/boot",
        "/mnt",
        "/etc/shadow",
        "/etc/ssh",
        str(key_file),
        str(ROOT),
        str(Path.home()),
    ]
    seen = in_box(f"for p in {' '.join(paths)}; do [ -e $p ] && echo $p; done; true")
    assert seen.stdout == b""


def test_the_system_is_read_only(in_box: InBox) -> None:
    places = "/ /usr/bin /etc /dev /run /run/box /home /proc/sys/kernel/core_pattern"
    seen = in_box(
        f"for p in {places}; do echo x 2>/dev/null >$p/x || echo x 2>/dev/null >$p || echo refused; done"
    )
    assert seen.stdout.count(b"refused") == len(places.split())
    assert not Path("/usr/bin/x").exists()


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of this machine that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_there_is_no_network(in_box: InBox, listener: int) -> None:
    code = f"""
        import socket
        addresses = [("127.0.0.1", {listener}), ("10.0.0.1", 80), ("1.1.1.1", 53)]
        for address in addresses:
            try:
                socket.create_connection(address, 2)
                print("connected", address)
            except OSError as error:
                print("refused")
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53))
            print("sent")
        except OSError:
            print("refused")
        try:
            socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK: the machine below a virtual machine
            print("made")
        except PermissionError:
            print("refused")
        print(sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]))
    """
    seen = in_box(python(code))
    assert seen.stdout.decode().split("\n")[:5] == ["refused"] * 5, seen
    assert b"['lo']" in seen.stdout


def test_an_abstract_socket_of_the_host_is_out_of_reach(in_box: InBox) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0openclaw-rl-escape")
        server.listen()
        code = 'import socket\nsocket.socket(socket.AF_UNIX).connect("\\0openclaw-rl-escape")\nprint("connected")'
        seen = in_box(python(code))
    assert b"connected" not in seen.stdout
    assert b"ConnectionRefusedError" in seen.stderr


def test_a_fork_bomb_stays_below_its_limit() -> None:
    """The host counts the processes of the box meanwhile; a sibling still runs commands, and nothing is left."""

    async def explode() -> tuple[int, bytes]:
        bomb, sibling = BubblewrapBox(BoxRoot(), LIMITS), BubblewrapBox(BoxRoot(), LIMITS)
        await asyncio.gather(bomb.open(), sibling.open())
        task = asyncio.create_task(
            bomb.run("bomb() { bomb | bomb & sleep 3; }; bomb; sleep 987654", time_limit=240)
        )
        counts = [0]
        while max(counts) <= 20 or len(counts) < 6:
            await asyncio.sleep(0.15)
            counts.append(len(processes_with("box_agent.sh", "/run/box/")))
        beside = await sibling.run("echo fine")
        await asyncio.gather(bomb.close(), sibling.close())
        await asyncio.gather(task, return_exceptions=True)
        return max(counts), beside.stdout

    most, beside = asyncio.run(explode())
    assert beside == b"fine\n"
    assert 20 < most <= 2 * LIMITS.processes
    assert processes_with("/run/box/") == []


def processes_with(*words: str) -> list[int]:
    """Return the processes of this machine whose command line has one of the words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if any(word in line for word in words):
            found.append(int(folder.name))
    return found


def test_disks_cannot_be_filled(in_box: InBox) -> None:
    before = shutil.disk_usage("/tmp").free
    places = ("/work", "/tmp", "/home/agent", "/dev/shm", "/dev", "/", "/run", "/etc")
    write = "; ".join(
        f"dd if=/dev/zero of={place}/fill bs=1M count=300 2>/dev/null" for place in places
    )
    seen = in_box(
        f"{write}; du -cb {' '.join(p.rstrip('/') + '/fill' for p in places)} 2>/dev/null | tail -1"
    )
    total = int(seen.stdout.split()[0])
    assert 3 * LIMITS.disk <= total <= 3 * LIMITS.disk + LIMITS.shared_memory
    assert before - shutil.disk_usage("/tmp").free < 200 * MEBIBYTE


def test_memory_is_bounded(in_box: InBox) -> None:
    seen = in_box("/usr/bin/python3 -c 'x = bytearray(1 << 30); print(len(x))'")
    assert seen.exit_code != 0
    assert seen.stdout == b""


def test_links_lead_nowhere_on_the_way_out(public_folder: Path) -> None:
    """Links to the host's files are left out, and a file below a linked folder is refused or stays below the target."""

    async def take_out() -> None:
        box = BubblewrapBox(BoxRoot(), LIMITS)
        await box.open()
        try:
            await box.run("echo mine >real; ln real hard; mkfifo pipe; mkdir d; echo 1 >d/f")
            await box.run("ln -s /etc/passwd link; ln -s /etc folder")
            await box.get("/work", public_folder / "out")
            await box.get("/work/real", public_folder / "single")
            with pytest.raises(SandboxError, match="exists"):
                await box.get("/work", public_folder / "out")
            with pytest.raises(ValueError, match="absolute"):
                await box.get("/work/../etc", public_folder / "other")
        finally:
            await box.close()

    asyncio.run(take_out())
    out = public_folder / "out"
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*")) == ["d", "d/f", "hard", "real"]
    assert (out / "hard").read_text() == "mine\n"
    assert (public_folder / "single").read_text() == "mine\n"
    assert not any(p.is_symlink() for p in out.rglob("*"))


def test_links_lead_nowhere_on_the_way_in(public_folder: Path) -> None:
    """A folder of the box that is a link to a host path: the file lands inside of the box or nowhere."""
    victim = public_folder / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    source = public_folder / "source"
    source.write_text("new")

    async def put_in() -> bytes:
        box = BubblewrapBox(BoxRoot(), LIMITS)
        await box.open()
        try:
            await box.run(f"ln -s {victim} out; ln -s /tmp inside")
            with pytest.raises(SandboxError, match="transfer failed"):
                await box.put(source, "/work/out/file")
            await box.put(source, "/work/inside/file")
            return (await box.run("cat /tmp/file")).stdout
        finally:
            await box.close()

    assert asyncio.run(put_in()) == b"new"
    assert list(victim.iterdir()) == []


def test_siblings_do_not_see_one_another() -> None:
    async def look_around() -> tuple[bytes, bytes]:
        first, second = BubblewrapBox(BoxRoot(), LIMITS), BubblewrapBox(BoxRoot(), LIMITS)
        await asyncio.gather(first.open(), second.open())
        try:
            await first.run(
                "echo secret >/tmp/a; echo secret >/dev/shm/a; sleep 1000.25 >/dev/null 2>&1 &"
            )
            look = "cat /tmp/* /dev/shm/* /work/* /run/box/*/command; cat /proc/*/cmdline | tr '\\0' ' '; kill -9 -1"
            try:
                seen = (await second.run(look, time_limit=2)).stdout
            except BoxLost:
                seen = b""
            alive = (
                await first.run("cat /tmp/a; grep -l 1000.25 /proc/[0-9]*/cmdline | wc -l")
            ).stdout
            return seen, alive
        finally:
            await asyncio.gather(first.close(), second.close())

    seen, alive = asyncio.run(look_around())
    assert b"secret" not in seen.replace(b"echo secret", b"")
    assert b"1000.25" not in seen
    assert alive.startswith(b"secret\n")
    assert int(alive.split()[1]) >= 1


def test_new_namespaces_and_mounts_are_refused(in_box: InBox) -> None:
    commands = [
        "unshare -U true",
        "unshare -m true",
        "mount -t tmpfs x /work",
        "chroot / true",
        "nsenter -t 1 -m true",
    ]
    seen = in_box(
        "; ".join(f"({command}) 2>/dev/null && echo worked" for command in commands) + "; true"
    )
    assert seen.stdout == b""


@pytest.mark.skipif(
    platform.machine() not in AUDIT_ARCHITECTURE, reason="this architecture has no filter"
)
def test_calls_that_no_task_needs_do_not_reach_the_kernel(in_box: InBox) -> None:
    column = list(AUDIT_ARCHITECTURE).index(platform.machine())
    numbers = [calls[column] for calls in REFUSED_CALLS.values() if calls[column] is not None]
    code = f"""
        import ctypes, fcntl, os, socket
        libc = ctypes.CDLL(None, use_errno=True)
        def error_of(*arguments):
            ctypes.set_errno(0)
            return ctypes.get_errno() if libc.syscall(*arguments) == -1 else 0
        print(sorted({{error_of(n, -1, -1, -1, -1, -1, -1) for n in {numbers}}}))
        print(error_of(435, 0, 0))
        for family in (1, 2, 10, 16, 17, 38, 40):
            try:
                socket.socket(family, socket.SOCK_STREAM if family != 16 else socket.SOCK_RAW).close()
                print(family, "allowed")
            except PermissionError:
                print(family, "refused")
            except OSError as error:
                print(family, error)
        try:
            fcntl.ioctl(0, 0x5412, b"x")
        except OSError as error:
            print(error.errno)
    """
    lines = in_box(python(code)).stdout.decode().splitlines()
    assert lines[:2] == ["[1]", "38"]
    assert [line.split()[0] for line in lines[2:9] if line.endswith("allowed")] == [
        "1",
        "2",
        "10",
        "16",
    ]
    assert [line.split()[0] for line in lines[2:9] if line.endswith("refused")] == [
        "17",
        "38",
        "40",
    ]
    assert lines[9] == "1"


def test_the_terminal_of_the_owner_is_out_of_reach(in_box: InBox) -> None:
    seen = in_box("echo x >/dev/tty && echo wrote; [ -t 0 ] && echo terminal; true")
    assert seen.stdout == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its boxes another user")
def test_boxes_of_root_are_not_root_on_the_host() -> None:
    async def find_user() -> set[int]:
        box = BubblewrapBox(BoxRoot(user_id=0), LIMITS)
        await box.open()
        try:
            assert (await box.run("id -u; touch /work/mine")).stdout == b"0\n"
            listed = subprocess.run(
                ["ps", "-eo", "uid,args"], capture_output=True, text=True, check=True
            ).stdout
            return {
                int(line.split()[0]) for line in listed.splitlines() if "box_agent.sh 1024" in line
            }
        finally:
            await box.close()

    assert asyncio.run(find_user()) == {65534}
