"""Boxes that build a layer: root, above this machine's system, of which nothing can be changed. They need root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox import bubblewrap
from openclaw_rl.sandbox.box import MEBIBYTE, BoxLimits, BoxRoot, CommandResult
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.build_watch import DiskBounds
from openclaw_rl.sandbox.control_groups import GroupParents
from openclaw_rl.sandbox.fresh_verification import Verification, move_to_fresh_box
from openclaw_rl.sandbox.host_base import copy_settings, hide_unreadable, write_host_base
from openclaw_rl.sandbox.root_builds import finish_layer, open_build_box
from openclaw_rl.sandbox.root_layers import LayeredRoot, RootLayer
from openclaw_rl.sandbox.root_store import RootStore

LIMITS = BoxLimits(memory=512 * MEBIBYTE, processes=100)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="roots are built by root")


def run_in_build(folder: Path, command: str, **options: Any) -> CommandResult:
    """Run a command in the build of a layer above this machine's base."""
    return build_root(folder, command, **options)[0]


def build_root(
    folder: Path, command: str, given: tuple[str, ...] = (), **options: Any
) -> tuple[CommandResult, LayeredRoot]:
    """Run a command in a build, and return the root of boxes. `given`: folders that boxes may change."""
    store = RootStore(folder / "roots")
    results: list[CommandResult] = []
    layers: list[RootLayer] = []

    async def write_base(layer: RootLayer) -> Mapping[str, Any]:
        write_host_base(layer)
        for name in ("dev", "proc", "sys", "run", "tmp"):
            (layer.root / name).mkdir(exist_ok=True)
        return {}

    async def run() -> None:
        base = await store.build_layer("a" * 64, write_base)

        async def write(layer: RootLayer) -> Mapping[str, Any]:
            sources = options.get("sources", {})
            bounds = options.get("bounds")
            async with open_build_box((base,), layer, LIMITS, sources, bounds) as box:
                results.append(await box.run(command, cwd="/", variables={}, time_limit=60))
            finish_layer(layer, given)
            return {}

        layers.extend((await store.build_layer("b" * 64, write), base))

    asyncio.run(run())
    return results[0], LayeredRoot(layers=tuple(layers))


def describe_node(name: str) -> tuple[int, int, int, int]:
    status = Path("/dev", name).stat()
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid


def test_the_device_nodes_of_a_build_are_its_own(public_folder: Path) -> None:
    before = {name: describe_node(name) for name in DEVICES}
    # Nothing is changed unless each node is another one than this machine's.
    own = " ".join(f'"$(stat -c %d:%i /dev/{name})"' for name in DEVICES)
    host = "|".join(f"{status[0]}:{status[1]}" for status in before.values())
    paths = " ".join(f"/dev/{name}" for name in DEVICES)
    result = run_in_build(
        public_folder,
        f"set -e\nfor node in {own}; do case $node in {host}) echo shared $node; exit 1 ;; esac; done\n"
        "echo x >/dev/null; head -c 1 /dev/urandom >/dev/null\n"
        f"chmod 600 {paths}; chown 12:12 {paths}; touch -d 2001-01-01 {paths}; stat -c %a {paths}",
    )
    assert result.exit_code == 0, result
    assert result.stdout.decode().split() == ["600"] * len(DEVICES)
    assert {name: describe_node(name) for name in DEVICES} == before


def test_the_first_process_names_no_path_of_this_machine(public_folder: Path) -> None:
    result = run_in_build(public_folder, "tr '\\0' '\\n' </proc/1/cmdline; cat /proc/1/environ")
    words = result.stdout.decode().splitlines()
    assert words[0] == "bwrap"
    assert str(public_folder) not in result.stdout.decode()
    assert "PATH=" not in result.stdout.decode()


def test_folders_of_packages_are_shown_outside_of_all_layers(public_folder: Path) -> None:
    wheels = public_folder / "wheels"
    wheels.mkdir()
    (wheels / "one.whl").write_text("x")
    result = run_in_build(
        public_folder,
        'ls "$PIP_FIND_LINKS"; ls -d /tmp/boxes-*',
        sources={"find-links": [str(wheels)]},
    )
    assert result.stdout.decode().split() == ["one.whl"]


def test_a_folder_below_usr_can_be_changed_alone(public_folder: Path) -> None:
    command = "mkdir -p /usr/src/app && echo built >/usr/src/app/file"
    built, layers = build_root(public_folder, command, ("/usr/src/app",))
    assert built.exit_code == 0, built
    root = BoxRoot(layers=layers, writable=("/usr/src/app",))

    async def run() -> CommandResult:
        box = BubblewrapBox(root, LIMITS)
        try:
            await box.open()
            return await box.run(
                "cat file; echo more >file && cat file; touch /usr/src/x /usr/bin/x",
                cwd="/usr/src/app",
            )
        finally:
            await box.close()

    result = asyncio.run(run())
    assert result.stdout.split() == [b"built", b"more"]
    assert result.stderr.decode().count("Read-only file system") == 2
    assert asyncio.run(run()).stdout.split() == [b"built", b"more"]


def test_nothing_hidden_in_the_home_is_carried(public_folder: Path) -> None:
    command = (
        "mkdir -p /root/.cache/uv /root/.config/pip /root/code && echo own >/root/.cache/uv/one.pth\n"
        "cd /root; echo own >.config/pip/pip.conf; echo own >.profile; echo own >code/file; echo own >gone"
    )
    built, layers = build_root(public_folder, command, ("/root",))
    assert built.exit_code == 0, built
    root = BoxRoot(layers=layers, writable=("/root",))

    async def run() -> CommandResult:
        used = BubblewrapBox(root, LIMITS)
        fresh = BubblewrapBox(root, LIMITS)
        try:
            await used.open()
            work = await used.run(
                "rm -rf .cache gone && mkdir -p .cache/uv .config/uv .openclaw-rl-carried/root\n"
                "echo planted | tee .cache/uv/one.pth .config/pip/pip.conf .config/uv/uv.toml .profile .new\n"
                "echo planted >.openclaw-rl-carried/root/other; ln -s /root/.config code/link\n"
                "echo work | tee code/file other 'a b'",
                cwd="/root",
            )
            assert work.exit_code == 0, work
            plan = Verification(
                command="",
                tests={},
                carried=("/root",),
                cleared=True,
                home="/root",
                hidden=("/tests",),
            )
            await move_to_fresh_box(used, fresh, plan)
            return await fresh.run("grep -r '' . | sort; ls -A", cwd="/root")
        finally:
            await used.close()
            await fresh.close()

    result = asyncio.run(run())
    lines = result.stdout.decode().splitlines()
    assert [line for line in lines if "planted" in line] == []
    assert {
        "./.cache/uv/one.pth:own", "./.config/pip/pip.conf:own", "./.profile:own",
        "./a b:work", "./code/file:work", "./other:work",
    } == {line for line in lines if ":" in line}  # fmt: skip
    assert {"gone", ".new", ".openclaw-rl-carried"}.isdisjoint(lines)


def test_a_build_that_fills_the_disk_is_ended(public_folder: Path) -> None:
    bounds = DiskBounds(layer=8 * MEBIBYTE, free=0)
    command = "head -c 20000000 /dev/zero >/var/large; sync /var/large; sleep 1000"
    with pytest.raises(SandboxError, match=r"wrote more than .* GiB, the most for one layer"):
        run_in_build(public_folder, command, bounds=bounds)
    with pytest.raises(SandboxError, match=r"set sandbox\.roots to a folder of another disk"):
        run_in_build(public_folder, "true", bounds=DiskBounds(free=2**60))


def test_a_build_without_a_limit_of_processes_is_refused(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "usable_parents", lambda: GroupParents(2, {}))
    with pytest.raises(SandboxError, match="no control group can be made here"):
        run_in_build(public_folder, "true")


def test_settings_with_passwords_are_not_copied(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    files = {
        "apt/sources.list": "deb https://me:secret@a.example/ one main\ndeb https://apt.example/ two main\n",
        "apt/sources.list.d/of-token.sources": "URIs: https://secret@apt.example/\n",
        "apt/apt.conf.d/90proxy": 'Acquire::http {\n  Proxy "http://me:secret@proxy.example:3128"; };\n',
        "apt/apt.conf.d/10plain": 'APT::Install-Recommends "no";\n',
        "apt/auth.conf": "machine x login me password secret\n",
        "profile.d/keys.sh": "export KEY=secret\n",
        "default/service": "PASSWORD=secret\n",
        "cron.d/job": "secret\n",
        "systemd/system/one.service": "Environment=KEY=secret\n",
        "npmrc": "_authToken=secret\n",
        "passwd": "root:x:0:0::/root:/bin/sh\n",
        "ssl/private/key.pem": "secret\n",
        "my-company.conf": "secret\n",
    }
    for name, text in files.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text(text)
    copy_settings(etc, tmp_path / "copy")
    copied = {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_text()
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file()
    }
    assert copied == {
        "apt/sources.list": "deb https://apt.example/ two main\n",
        "apt/apt.conf.d/10plain": files["apt/apt.conf.d/10plain"],
        "passwd": files["passwd"],
    }
    assert (tmp_path / "copy" / "default").is_dir()


def test_files_that_only_root_reads_are_hidden(tmp_path: Path) -> None:
    system = tmp_path / "usr"
    for name in ("lib/open", "lib/secret", "closed/file", "share/open"):
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text("x")
        (system / name).chmod(0o644)
    (system / "lib" / "secret").chmod(0o640)
    (system / "closed").chmod(0o750)
    (system / "lib").chmod(0o711 | 0o004)
    layer = RootLayer(tmp_path / "layer")
    layer.usr.mkdir(parents=True)
    hide_unreadable(system, layer.usr)
    marks = [path.relative_to(layer.usr).as_posix() for path in layer.usr.rglob("*")]
    assert sorted(marks) == ["closed", "lib", "lib/secret"]
    root = LayeredRoot(layers=(layer,))
    assert root.find_path("/usr/lib/secret") is None
    assert root.find_path("/usr/closed") is None
    assert (layer.usr / "lib").stat().st_mode == (system / "lib").stat().st_mode
