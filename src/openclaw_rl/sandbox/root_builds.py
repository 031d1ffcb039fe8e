"""Builds layers of roots in boxes: as root, with the network behind a proxy, and nothing of this machine to write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_commands import BOX_PATH
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.build_watch import DiskBounds, watch_disk
from openclaw_rl.sandbox.egress_proxy import open_egress_proxy
from openclaw_rl.sandbox.gateway_relay import forward_gateway_port
from openclaw_rl.sandbox.package_settings import local_folders, package_variables, source_hosts
from openclaw_rl.sandbox.root_layers import LayeredRoot, RootLayer, find_layer_problem

PROGRAMS_FOLDER = "/usr/local/lib/openclaw-rl/programs"
"""Folder of the programs that stand before those of the system: package managers without a network, uv."""
BOX_OWNER = 65534
"""User of this machine that the boxes of root run as, and who owns what they may change."""
_BUILD_VARIABLES = {
    "DEBIAN_FRONTEND": "noninteractive",
    "OPENCLAW_RL_NETWORK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PROGRAMS": PROGRAMS_FOLDER,
    "NO_PROXY": "localhost,127.0.0.1,::1",
    "no_proxy": "localhost,127.0.0.1,::1",
}
# Outside of the layer, or of one run.
_NOT_KEPT = ("dev", "proc", "sys", "run", "tmp", "tests", "logs", "solution")


@dataclass(slots=True, kw_only=True)
class BuildBox:
    """An open box that writes a layer. `variables`: of every command."""

    box: BubblewrapBox
    variables: dict[str, str] = field(default_factory=dict)

    async def run(
        self, command: str, *, cwd: str, variables: Mapping[str, str], time_limit: float
    ) -> CommandResult:
        """Run a command with the network. Raises `SandboxError`."""
        path = f"{PROGRAMS_FOLDER}:{variables.get('PATH', BOX_PATH)}"
        merged = {**self.variables, **variables, "PATH": path}
        return await self.box.run(command, cwd=cwd, env=merged, time_limit=time_limit)


@contextlib.asynccontextmanager
async def open_build_box(
    below: tuple[RootLayer, ...],
    layer: RootLayer,
    limits: BoxLimits,
    sources: Mapping[str, list[str]],
    bounds: DiskBounds | None = None,
) -> AsyncIterator[BuildBox]:
    """Open a box that writes `layer` above the layers `below`. `sources`: of packages, from `read_package_sources`.

    `bounds`: of the disk. Raises `SandboxError` if this machine cannot build, and if the build passes a bound.
    """
    find_layer_problem(raise_it=True)
    async with open_egress_proxy(source_hosts(sources)) as address:
        root = BoxRoot(
            layers=LayeredRoot(layers=below, target=layer),
            writable=(),
            read_only=local_folders(sources),
            gateway=address,
        )
        box = BubblewrapBox(root, limits)
        try:
            await box.open()
            _check_held_limits(box)
            proxy = await forward_gateway_port(box)
            names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
            variables = _BUILD_VARIABLES | dict.fromkeys(names, proxy) | package_variables(sources)
            async with watch_disk(layer.folder, bounds or DiskBounds(), box.close):
                yield BuildBox(box=box, variables=variables)
        finally:
            await asyncio.shield(box.close())


def _check_held_limits(box: BubblewrapBox) -> None:
    """Raises `SandboxError` unless the number of processes is limited: the other limit does not count for root."""
    if "processes" not in box.held_limits:
        raise SandboxError(
            "no control group can be made here, so that nothing limits the processes of a build, which is root: "
            "expected the controller pids of control groups, writable for this process"
        )


def write_programs(layer: RootLayer) -> None:
    """Write the programs that stand before those of the system."""
    folder = layer.folder / PROGRAMS_FOLDER.lstrip("/")
    shutil.copytree(ASSETS / "sandbox" / "programs", folder, dirs_exist_ok=True)
    for path in folder.iterdir():
        path.chmod(0o755)


def finish_layer(layer: RootLayer, given: Collection[str], removed: Collection[str] = ()) -> None:
    """Make a layer ready for boxes: readable for all, and the folders `given` owned by their user.

    `removed`: folders that do not stay. No process of the build runs any more.
    """
    _refuse_links(layer)
    for path in (*(f"/{name}" for name in _NOT_KEPT), *removed):
        folder = layer.find_folder(path)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    for top in (layer.root, layer.usr):
        _make_readable(top)
    folders = map(layer.find_folder, given)
    for folder in filter(None, folders):
        _give_away(folder)


def _refuse_links(layer: RootLayer) -> None:
    for name in _NOT_KEPT:
        if (layer.root / name).is_symlink():
            raise SandboxError(f"the build made /{name} a link, which a box cannot have")


def _make_readable(folder: Path) -> None:
    for path in _walk(folder):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode | 0o444 | (0o111 if path.is_dir() or mode & 0o111 else 0)
        if wanted != mode:
            path.chmod(wanted)


def _give_away(folder: Path) -> None:
    os.lchown(folder, BOX_OWNER, BOX_OWNER)
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o700)
    for path in _walk(folder):
        os.lchown(path, BOX_OWNER, BOX_OWNER)
        mode = stat.S_IMODE(path.lstat().st_mode)
        path.chmod(mode | (0o700 if path.is_dir() else 0o600))


def _walk(folder: Path) -> list[Path]:
    """Return the files and folders below a folder: no links, and nothing that an overlay marked as removed."""
    paths = [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
    modes = [(path, path.lstat().st_mode) for path in paths]
    return [path for path, mode in modes if stat.S_ISREG(mode) or stat.S_ISDIR(mode)]
