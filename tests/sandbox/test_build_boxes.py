"""Boxes that build a layer: root, above this machine's system, of which nothing can be changed. They need root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.sandbox.box import MEBIBYTE, BoxLimits, CommandResult
from openclaw_rl.sandbox.host_base import write_host_base
from openclaw_rl.sandbox.root_builds import open_build_box
from openclaw_rl.sandbox.root_layers import RootLayer
from openclaw_rl.sandbox.root_store import RootStore

LIMITS = BoxLimits(memory=512 * MEBIBYTE, processes=100)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="roots are built by root")


def run_in_build(folder: Path, command: str, **options: Any) -> CommandResult:
    """Run a command in the build of a layer above this machine's base."""
    store = RootStore(folder / "roots")
    results: list[CommandResult] = []

    async def write_base(layer: RootLayer) -> Mapping[str, Any]:
        write_host_base(layer)
        for name in ("dev", "proc", "sys", "run", "tmp"):
            (layer.root / name).mkdir(exist_ok=True)
        return {}

    async def run() -> None:
        base = await store.build_layer("a" * 64, write_base)

        async def write(layer: RootLayer) -> Mapping[str, Any]:
            sources = options.get("sources", {})
            async with open_build_box((base,), layer, LIMITS, sources) as box:
                results.append(await box.run(command, cwd="/", variables={}, time_limit=60))
            return {}

        await store.build_layer("b" * 64, write)

    asyncio.run(run())
    return results[0]


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
