"""Boxes in real containers of Podman, from an image that is made of one static program."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import MEBIBYTE, BoxLimits, BoxRoot
from openclaw_rl.sandbox.container import ContainerBox
from openclaw_rl.sandbox.fresh_verification import Verification, verify_in_fresh_box

IMAGE = "localhost/openclaw-rl-busybox:latest"
LIMITS = BoxLimits(
    memory=64 * MEBIBYTE, processes=30, disk=8 * MEBIBYTE, shared_memory=4 * MEBIBYTE
)
PROGRAMS = (
    "sh cat cut dd echo env find grep head id ls mkdir nc readlink rm seq setsid sleep tail "
    "tar test timeout touch"
)
PROGRAMS += " tr true wc ln"


@pytest.fixture(scope="module", autouse=True)
def _image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    program = shutil.which("busybox")
    if shutil.which("podman") is None or program is None:
        pytest.skip("needs podman and a static busybox (apt install podman busybox-static)")
    folder = tmp_path_factory.mktemp("image")
    with tarfile.open(folder / "root.tar", "w") as archive:
        archive.add(Path(program).resolve(), "bin/busybox")
        for name in PROGRAMS.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    subprocess.run(
        ["podman", "import", folder / "root.tar", IMAGE], check=True, capture_output=True
    )
    yield
    subprocess.run(["podman", "rmi", "--force", IMAGE], check=False, capture_output=True)


@pytest.fixture(autouse=True)
def _no_container_is_left() -> Iterator[None]:
    yield
    listed = subprocess.run(
        ["podman", "ps", "-aq", "--filter", "name=openclaw-rl-box"], capture_output=True, text=True
    )
    assert listed.stdout == ""


def new_box(root: BoxRoot | None = None, **limits: Any) -> ContainerBox:
    return ContainerBox(
        replace(root or BoxRoot(), image=IMAGE), replace(LIMITS, **limits), program="podman"
    )


def with_box(
    use: Callable[[ContainerBox], Awaitable[Any]], root: BoxRoot | None = None, **limits: Any
) -> Any:
    async def use_box() -> Any:
        box = new_box(root, **limits)
        try:
            await box.open()
            return await use(box)
        finally:
            await box.close()
            await box.close()

    return asyncio.run(use_box())


def test_commands_and_transfers(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("content")

    async def use(box: ContainerBox) -> None:
        result = await box.run("id -u; echo $A; echo bad >&2; exit 3", cwd="/tmp", env={"A": "x y"})
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"1000\nx y\n", b"bad\n")
        began = time.monotonic()
        assert (await box.run("sleep 30", time_limit=1)).timed_out
        assert time.monotonic() - began < 8
        await box.put(source, "/work/b")
        await box.run("ln -s /etc/passwd link", cwd="/work/b")
        await box.get("/work/b", tmp_path / "out")
        with pytest.raises(ValueError, match="longer than"):
            await box.run("true " + "x" * 130_000)

    with_box(use)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]


def test_limits_and_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_API_KEY", "sk-owner-5f1d2c7a")

    async def use(box: ContainerBox) -> None:
        assert (
            await box.run("dd if=/dev/zero of=a bs=1M count=20 2>/dev/null; wc -c <a")
        ).stdout.strip() == b"8388608"
        assert b"sk-owner" not in (await box.run("cat /proc/*/environ /proc/*/cmdline; env")).stdout
        assert (await box.run("touch /bin/x")).exit_code != 0
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert (await box.run(f"nc -w 1 127.0.0.1 {port} </dev/null")).exit_code != 0
        bomb = "for n in $(seq 200); do sleep 3 & done; echo all"
        assert b"all" not in (await box.run(bomb, time_limit=10)).stdout

    with_box(use)


def test_memory_is_bounded() -> None:
    """The kernel kills the command, or the first process of the container, and with it the box."""

    async def use(box: ContainerBox) -> bytes:
        try:
            return (
                await box.run("head -c 209715200 /dev/zero | tail -c 157286400 | wc -c")
            ).stdout.strip()
        except BoxLost:
            return b"lost"

    assert with_box(use) in (b"0", b"lost")


def test_a_result_is_verified_in_a_fresh_container(tmp_path: Path) -> None:
    (tmp_path / "check").write_text('[ "$(cat /work/answer)" = 42 ]')
    plan = Verification(command="sh /tests/check", tests={"/tests/check": tmp_path / "check"})
    root = BoxRoot(writable=("/work", "/tests"))

    async def play(command: str) -> int:
        used = new_box(root)
        await used.open()
        await used.run(command)
        return (await verify_in_fresh_box(used, new_box(root), plan)).exit_code

    assert asyncio.run(play("echo 42 >answer")) == 0
    assert asyncio.run(play("echo 41 >answer; echo true >/tests/check")) == 1


def test_a_box_on_gvisor() -> None:
    if shutil.which("runsc") is None:
        pytest.skip("needs gVisor's runsc (apt install runsc)")

    async def use() -> list[bytes]:
        root, limits = BoxRoot(image=IMAGE), replace(LIMITS, memory=512 * MEBIBYTE)
        box = ContainerBox(root, limits, program="podman", runtime="runsc")
        try:
            await box.open()
            commands = (
                "cat /proc/version",
                "grep -c : /proc/net/dev",
                "touch /bin/x || echo refused",
                "id -u",
            )
            return [(await box.run(command)).stdout for command in commands]
        finally:
            await box.close()

    version, interfaces, written, user = asyncio.run(use())
    assert version.startswith(b"Linux version 4.4.0 "), "gVisor's kernel, not this machine's"
    assert (interfaces, written, user) == (b"1\n", b"refused\n", b"1000\n")


def test_the_lifetime_and_an_unknown_image() -> None:
    async def use(box: ContainerBox) -> None:
        with pytest.raises(BoxLost):
            await box.run("sleep 20")

    with_box(use, lifetime=0.5)
    with pytest.raises(SandboxError, match="started no container"):
        asyncio.run(ContainerBox(BoxRoot(image="no/such:image"), LIMITS, program="podman").open())


def test_no_container_is_left_after_its_owner_was_killed() -> None:
    code = f"""
import asyncio
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot
from openclaw_rl.sandbox.container import ContainerBox
async def main():
    box = ContainerBox(BoxRoot(image={IMAGE!r}), BoxLimits(), program="podman")
    await box.open()
    print("ready", flush=True)
    await box.run("sleep 100", time_limit=100)
asyncio.run(main())
"""
    with tempfile.TemporaryDirectory() as folder:
        owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=folder)
        assert owner.stdout is not None
        with owner.stdout:
            assert owner.stdout.readline() == b"ready\n"
        owner.kill()
        owner.wait()
    until = time.monotonic() + 20
    listed = ["podman", "ps", "-aq", "--filter", "name=openclaw-rl-box"]
    while (
        subprocess.run(listed, capture_output=True, check=True).stdout and time.monotonic() < until
    ):
        time.sleep(0.2)
