"""The lowest layer of a root that is built here: this machine's system, without its data and its users' files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from pathlib import Path

from openclaw_rl.sandbox.root_layers import RootLayer

_FORMAT = b"1"
_PACKAGES = Path("/var/lib/dpkg/status")
_RELEASE = Path("/etc/os-release")
# Below /etc: of this machine, its users and its network, not of its system.
_OWN_SETTINGS = frozenset(
    {
        "auth.conf", "auth.conf.d", "crypttab", "environment", "exports", "fstab", "hostname", "hosts", "machine-id",
        "mtab", "netrc", "openclaw-rl", "pip.conf", "resolv.conf", "shadow", "shadow-", "gshadow", "gshadow-", "ssh",
        "sudoers", "sudoers.d",
    }
)  # fmt: skip
# Below /var/lib: what the scripts of packages read.
_PACKAGE_STATE = (
    "dpkg",
    "dictionaries-common",
    "emacsen-common",
    "pam",
    "sgml-base",
    "ucf",
    "xml-core",
)
_EMPTY_FOLDERS = (
    "dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial", "var/lib/misc", "var/local", "var/log/apt", "var/mail", "var/spool", "var/tmp",
)  # fmt: skip
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_TEXTS = {
    "root/etc/hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "root/etc/hostname": "box\n",
    "root/etc/resolv.conf": "",
    "root/etc/machine-id": "",
    # A build needs no file on the disk before its end: its layer counts when it has a new name.
    "root/etc/dpkg/dpkg.cfg.d/openclaw-rl": "force-unsafe-io\n",
}
_NO_SERVICES = "#!/bin/sh\n# No service is started while packages are installed.\nexit 101\n"


def digest_host() -> str:
    """Return the digest of this machine's system: its release and its packages."""
    digest = hashlib.sha256(_FORMAT)
    for file in (_RELEASE, _PACKAGES):
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def describe_host() -> str:
    """Return the name of this machine's system, such as "Debian GNU/Linux 12 (bookworm)"."""
    with contextlib.suppress(OSError):
        for line in _RELEASE.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            if name == "PRETTY_NAME":
                return value.strip('"')
    return "the system of this machine"


def write_host_base(layer: RootLayer) -> None:
    """Write the layer. Of /etc it has the files that every user of this machine can read, without its own settings."""
    for name in _EMPTY_FOLDERS:
        (layer.root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (layer.root / name).chmod(0o1777)
    for name in _LINKS:
        path = Path("/", name)
        if path.is_symlink():
            (layer.root / name).symlink_to(path.readlink())
    _copy_readable(Path("/etc"), layer.root / "etc")
    for name in _PACKAGE_STATE:
        if Path("/var/lib", name).is_dir():
            _copy_readable(Path("/var/lib", name), layer.root / "var" / "lib" / name)
    for name, text in _TEXTS.items():
        path = layer.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    _write_shadow(layer.root / "etc")
    services = layer.usr / "sbin" / "policy-rc.d"
    services.parent.mkdir(parents=True, exist_ok=True)
    services.write_text(_NO_SERVICES, encoding="utf-8")
    services.chmod(0o755)


def _copy_readable(source: Path, target: Path) -> None:
    """Copy what every user can read, with modes and owners; links stay links."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copystat(source, target)
    for path in sorted(source.iterdir()):
        status = path.lstat()
        copy = target / path.name
        if path.name in _OWN_SETTINGS:
            continue
        if stat.S_ISLNK(status.st_mode):
            copy.symlink_to(path.readlink())
        elif stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o005 == 0o005:
                _copy_readable(path, copy)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004:
            shutil.copy2(path, copy)
            os.chown(copy, status.st_uid, status.st_gid)


def _write_shadow(etc: Path) -> None:
    """Write password files without passwords: tools that add users expect them."""
    for name, source, rest in (
        ("shadow", "passwd", ":*:19000:0:99999:7:::"),
        ("gshadow", "group", ":*::"),
    ):
        file = etc / source
        if not file.is_file():
            continue
        names = [
            line.split(":")[0] for line in file.read_text(errors="replace").splitlines() if line
        ]
        (etc / name).write_text("".join(f"{one}{rest}\n" for one in names))
        (etc / name).chmod(0o640)
