"""Tar archives to and from a box. What comes out of a box is untrusted: only plain files and folders are written."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from openclaw_rl.errors import SandboxError

MAX_MEMBERS = 100_000
MAX_SECONDS = 60.0
"""For the files of one archive: a box can have as many as the limit allows, all of them empty."""
_COPIED_BYTES = 2**16
_NAME_BYTES = 2**13
_EXTENDED_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def check_box_path(path: str) -> str:
    """Return an absolute path in a box. Raises `ValueError` for others: a box has no folder of its owner's."""
    if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is no path in a box: expected an absolute path without '..'")
    return path


def pack_source(source: Path, name: str, to: Path) -> bool:
    """Write a file, as `name`, or the content of a folder to a tar archive; owners are left out, links stay links.

    Returns whether `source` is a folder.
    """
    is_folder = source.is_dir()
    with tarfile.open(to, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(source, "." if is_folder else name, filter=_without_owner)
    return is_folder


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _PlainHeader(tarfile.TarInfo):
    """A header that is read without much memory: no extended or sparse headers, which name their own size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in (*_EXTENDED_HEADERS, tarfile.GNUTYPE_SPARSE):
            raise tarfile.ReadError(
                "an extended or sparse header: expected the format of GNU tar without -S"
            )
        if (
            self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
            and self.size > _NAME_BYTES
        ):
            raise tarfile.ReadError(f"a name of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def unpack_untrusted(file: BinaryIO, to: Path, limit: int) -> list[str]:
    """Write the plain files and folders of an archive below the new folder `to`, or its only file as `to`.

    Returns the names of links and devices, which are left out. Nothing is ever written through a link, as all that
    exists below `to` was made here. `limit`: bytes of all files; sparse files and hard links unpack to more than the
    archive has. Raises `SandboxError` if the archive is damaged, too large, or has an unsafe name.
    """
    if to.exists() or to.is_symlink():
        raise SandboxError(f"{to} exists: name a new path for what is taken out of the box")
    left_out = []
    end = time.monotonic() + MAX_SECONDS
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_PlainHeader) as archive:
            for number, member in enumerate(archive):
                if number == MAX_MEMBERS:
                    raise SandboxError(
                        f"more than {MAX_MEMBERS} files are to be taken out of the box"
                    )
                if time.monotonic() > end:
                    raise SandboxError(
                        f"{number} files were taken out of the box in {MAX_SECONDS:g} s, and there are more"
                    )
                # A file alone is written as `to`.
                is_alone = number == 0 and not member.isdir()
                target = to if is_alone else to / _safe_name(member.name)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isfile() or member.islnk():
                    limit -= _write_member(archive, member, target, limit)
                else:
                    left_out.append(member.name)
    except (tarfile.TarError, OSError, KeyError, RecursionError) as error:
        raise SandboxError(f"the files of the box could not be taken out: {error}") from error
    return left_out


def _safe_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxError(f"the box names a file outside of its folder: {name[:200]!r}")
    return str(PurePosixPath(*parts))


def _write_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, limit: int
) -> int:
    """Write one file and return its size; a hard link gets the content of the earlier file that it names."""
    content = archive.extractfile(member)
    # A hard link to a folder or device.
    if content is None:
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with content, target.open("xb") as file:
        while part := content.read(_COPIED_BYTES):
            written += len(part)
            if written > limit:
                raise SandboxError(
                    "what is to be taken out of the box is larger than the limit `disk`"
                )
            file.write(part)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)
    return written
