"""Root file systems in layers: what a build added, above this machine's /usr, joined by overlay mounts for one box.

The mounts are made in a mount namespace of the box, so that they end with it, also after `kill -9` of its owner.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from openclaw_rl.errors import SandboxError

_SYSTEM = Path("/usr")
# Characters that separate the options of an overlay mount.
_SEPARATORS = frozenset(":,\\\n")
_MOUNT_FLAGS = "nosuid,nodev"
# Device nodes of a box: name -> major and minor number.
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}


@dataclass(frozen=True, slots=True)
class RootLayer:
    """A folder of the store: `root`, the files outside of /usr, and `usr`, those below it."""

    folder: Path

    def find_folder(self, path: str) -> Path | None:
        """Return the folder that this layer has at a path; None also if a link leads there.

        What a build wrote is not trusted: a link would lead to this machine's own files.
        """
        at, names = self.split_path(path)
        for name in names:
            at /= name
            if at.is_symlink() or not at.is_dir():
                return None
        return at

    def split_path(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Return the folder of this layer that has a path, and the names of the path below it."""
        names = Path(path).parts[1:]
        return (self.usr, names[1:]) if names[:1] == ("usr",) else (self.root, names)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def usr(self) -> Path:
        return self.folder / "usr"

    @property
    def work_folders(self) -> tuple[Path, Path]:
        """Folders that the kernel needs while a layer is written."""
        return self.folder / "work-root", self.folder / "work-usr"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredRoot:
    """A root of several layers, the topmost first. `target`: the layer that a build writes; None: nothing is written.

    Without a target, files can be changed in memory, in the folders that are writable in the box.
    """

    layers: tuple[RootLayer, ...]
    target: RootLayer | None = None

    def find_path(self, path: str) -> Path | None:
        """Return the file, folder or link of the topmost layer that has a path, or None.

        None also if the path was removed, or leads through a link.
        """
        for layer in self.layers:
            at, names = layer.split_path(path)
            for depth, name in enumerate(names, 1):
                at /= name
                if not os.path.lexists(at):
                    break
                is_last = depth == len(names)
                # It hides what the layers below have there.
                if _is_removed(at) or (at.is_symlink() and not is_last):
                    return None
                if is_last:
                    return at
        return None

    def list_top(self) -> Mapping[str, Path]:
        """Return the entries of `/`: name -> file, folder or link in the topmost layer that has it."""
        entries: dict[str, Path] = {}
        removed: set[str] = set()
        for layer in self.layers:
            for path in sorted(layer.root.iterdir()):
                if _is_removed(path):
                    removed.add(path.name)
                elif path.name not in removed:
                    entries.setdefault(path.name, path)
        return MappingProxyType(entries)

    def mount_command(self, at: Path, memory: Path, disk: int) -> str:
        """Return shell commands that mount the root at the folder `at`. `memory`: a folder for changes in memory.

        `disk`: bytes of these changes.
        """
        lower_root = [layer.root for layer in self.layers]
        lower_usr = [*(layer.usr for layer in self.layers), _SYSTEM]
        if self.target is not None:
            work_root, work_usr = self.target.work_folders
            return "\n".join(
                [
                    _mount_overlay(at, lower_root, self.target.root, work_root),
                    _mount_overlay(at / "usr", lower_usr, self.target.usr, work_usr),
                    _replace_devices(memory),
                ]
            )
        size = f"mode=0711,size={disk},{_MOUNT_FLAGS}"
        quoted = shlex.quote(str(memory))
        return "\n".join(
            [
                f"mount -t tmpfs -o {size} tmpfs {quoted}",
                f"mkdir -m 0755 {quoted}/upper {quoted}/upper-usr",
                f"mkdir -m 0700 {quoted}/work {quoted}/work-usr",
                _mount_overlay(at, lower_root, memory / "upper", memory / "work"),
                _mount_overlay(at / "usr", lower_usr, memory / "upper-usr", memory / "work-usr"),
            ]
        )


def _replace_devices(folder: Path) -> str:
    """Return shell commands that put new device nodes over this machine's, in this mount namespace.

    A build is root, who could change the mode and the owner of a node that it sees.
    """
    quoted = shlex.quote(str(folder))
    commands = [f"mount -t tmpfs -o mode=0755,size=64k,nosuid,noexec tmpfs {quoted}"]
    for name, (major, minor) in _DEVICES.items():
        node = f"{quoted}/{name}"
        commands.append(f"mknod -m 0666 {node} c {major} {minor}")
        commands.append(f"mount --bind {node} /dev/{name}")
    return "\n".join(commands)


def _mount_overlay(at: Path, lower: list[Path], upper: Path, work: Path) -> str:
    for path in (*lower, upper, work):
        if _SEPARATORS & set(str(path)):
            raise SandboxError(
                f"{path}: expected a path without ':', ',' and '\\' for the roots of boxes (sandbox.roots)"
            )
    options = f"{_MOUNT_FLAGS},lowerdir={':'.join(map(str, lower))}"
    options += f",upperdir={upper},workdir={work}"
    return f"mount -t overlay -o {shlex.quote(options)} overlay {shlex.quote(str(at))}"


def wrap_in_mounts(commands: str, program: Path, user: int | None) -> list[str]:
    """Return the start of a command line that makes mounts in a new mount namespace and runs `program` after them.

    `user`: who runs it; None: who runs this process. The arguments of the program follow. Raises `SandboxError`.
    """
    find_layer_problem(raise_it=True)
    # Process 1 of the box shows how it was called to all in the box: by its name, without a path of this machine.
    start = f'PATH={shlex.quote(str(program.parent))}; exec {shlex.quote(program.name)} "$@"'
    if user is not None:
        change = f"setpriv --reuid {user} --regid {user} --clear-groups"
        start = f'exec {change} -- /bin/sh -c {shlex.quote(start)} bwrap "$@"'
    script = f"set -e\n{commands}\n{start}\n"
    unshare = shutil.which("unshare") or "unshare"
    return [unshare, "--mount", "--propagation", "private", "--", "/bin/sh", "-c", script, "bwrap"]


def find_layer_problem(*, raise_it: bool = False) -> str | None:
    """Return why this process cannot mount a root of layers, None if it can. `raise_it`: raise `SandboxError` then."""
    missing = [name for name in ("unshare", "mount", "setpriv") if shutil.which(name) is None]
    problem = None
    if os.geteuid() != 0:
        problem = "a root that was built is mounted by root, and this process runs as another user"
    elif missing:
        problem = (
            f"a root that was built needs {', '.join(missing)} (your system's package `util-linux`)"
        )
    if problem and raise_it:
        raise SandboxError(problem)
    return problem


def _is_removed(path: Path) -> bool:
    """Return whether an overlay marked a name as removed: a device 0, 0."""
    status = path.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
