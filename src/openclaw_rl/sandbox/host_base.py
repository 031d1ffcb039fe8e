"""The lowest layer of a root that is built here: this machine's system, without its data and its users' files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from fnmatch import fnmatch
from pathlib import Path

from openclaw_rl.sandbox.root_layers import RootLayer

_FORMAT = b"2"
_PACKAGES = Path("/var/lib/dpkg/status")
_RELEASE = Path("/etc/os-release")
_SYSTEM = Path("/usr")
# Below /etc: what programs and the scripts of packages read, and no settings that a user of this machine writes.
_SETTINGS = (
    "ImageMagick-*", "R", "X11", "adduser.conf", "alternatives", "apt", "bash.bashrc", "ca-certificates",
    "ca-certificates.conf", "debconf.conf", "debian_version", "deluser.conf", "dpkg", "emacs", "ethertypes", "fonts",
    "gai.conf", "group", "groff", "gss", "host.conf", "init.d", "inputrc", "issue", "java*", "kernel", "ld.so.*",
    "libaudit.conf", "locale.alias", "locale.gen", "localtime", "login.defs", "logrotate.d", "lsb-release", "magic*",
    "manpath.config", "maven", "mime.types", "mke2fs.conf", "netconfig", "nsswitch.conf", "os-release", "pam.conf",
    "pam.d", "passwd", "perl", "pki", "profile", "protocols", "python3*", "rc?.d", "rmt", "rpc", "security", "selinux",
    "services", "sgml", "shells", "skel", "ssl", "subgid", "subuid", "terminfo", "texmf", "timezone", "ucf.conf",
    "update-motd.d", "vim", "xattr.conf", "xdg", "xml",
)  # fmt: skip
_NOT_COPIED = frozenset({"auth.conf", "auth.conf.d", "private"})
_EMPTY_SETTINGS = ("cron.d", "cron.daily", "default", "profile.d", "sysctl.d", "systemd/system")
# An address with a user, and often a password.
_WITH_USER = re.compile(rb"://[^/\s@\"']+@")
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
    """Write the layer: settings of programs that every user of this machine can read, without passwords.

    Files of /usr that not every user can read are hidden, as a build is root.
    """
    for name in _EMPTY_FOLDERS:
        (layer.root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (layer.root / name).chmod(0o1777)
    for name in _LINKS:
        path = Path("/", name)
        if path.is_symlink():
            (layer.root / name).symlink_to(path.readlink())
    copy_settings(Path("/etc"), layer.root / "etc")
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
    hide_unreadable(_SYSTEM, layer.usr)


def hide_unreadable(system: Path, layer: Path) -> None:
    """Mark files and folders below `system` as removed in `layer`, unless every user can read them."""
    for parent, folders, files in os.walk(system):
        for name in (*folders, *files):
            path = Path(parent, name)
            if _is_readable(path):
                continue
            mark = layer / path.relative_to(system)
            _make_parents(mark.parent, path.parent, layer)
            mark.unlink(missing_ok=True)
            os.mknod(mark, stat.S_IFCHR, 0)
            if name in folders:
                folders.remove(name)


def _is_readable(path: Path) -> bool:
    """Return whether every user can read a file, or list and enter a folder."""
    mode = path.lstat().st_mode
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    return stat.S_ISLNK(mode) or mode & needed == needed


def _make_parents(folder: Path, original: Path, top: Path) -> None:
    """Make a folder of a layer like the original, whose mode and owner it replaces."""
    if folder == top or folder.is_dir():
        return
    _make_parents(folder.parent, original.parent, top)
    folder.mkdir()
    shutil.copystat(original, folder)
    status = original.stat()
    os.chown(folder, status.st_uid, status.st_gid)


def copy_settings(source: Path, target: Path) -> None:
    """Copy those of /etc that builds need, and make folders that packages write to."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in _SETTINGS):
            _copy_path(path, target / path.name)
    for name in _EMPTY_SETTINGS:
        (target / name).mkdir(parents=True, exist_ok=True)


def _copy_readable(source: Path, target: Path) -> None:
    """Copy what every user can read, with modes and owners."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copystat(source, target)
    for path in sorted(source.iterdir()):
        if path.name not in _NOT_COPIED:
            _copy_path(path, target / path.name)


def _copy_path(path: Path, copy: Path) -> None:
    """Copy a file or folder that every user can read; a link stays a link."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        copy.symlink_to(path.readlink())
    elif stat.S_ISDIR(status.st_mode):
        if status.st_mode & 0o005 == 0o005:
            _copy_readable(path, copy)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004:
        _copy_file(path, copy)


def _copy_file(path: Path, copy: Path) -> None:
    """Copy a file. One with a user in an address is left out; of a list of apt, the line."""
    content = path.read_bytes()
    if _WITH_USER.search(content):
        if path.suffix != ".list":
            return
        lines = content.splitlines(keepends=True)
        content = b"".join(line for line in lines if not _WITH_USER.search(line))
    copy.write_bytes(content)
    shutil.copystat(path, copy)
    status = path.stat()
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
