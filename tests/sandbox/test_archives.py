"""Archives that a box could send: nothing is written outside of the target, and little memory is used."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox import archives
from openclaw_rl.sandbox.archives import unpack_untrusted


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def unpack(
    *members: tuple[tarfile.TarInfo, bytes], to: Path, style: int = tarfile.GNU_FORMAT
) -> list[str]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=style) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    file.seek(0)
    return unpack_untrusted(file, to, 1000)


FOLDER = member(".", tarfile.DIRTYPE)


@pytest.mark.parametrize(
    "name", ["../escape", "a/../../escape", "/tmp/openclaw-escape", "./../escape"]
)
def test_a_name_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="outside of its folder"):
        unpack(FOLDER, member(name, data=b"x"), to=tmp_path / "to")
    assert not (tmp_path / "escape").exists()
    assert not Path("/tmp/openclaw-escape").exists()


def test_a_file_below_a_link_lands_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    left_out = unpack(
        FOLDER,
        member("a", tarfile.SYMTYPE, str(tmp_path / "victim")),
        member("a/f", data=b"x"),
        to=tmp_path / "to",
    )
    assert left_out == ["a"]
    assert (tmp_path / "to" / "a" / "f").read_bytes() == b"x"
    assert list((tmp_path / "victim").iterdir()) == []


def test_devices_links_and_pipes_are_left_out(tmp_path: Path) -> None:
    kinds = {
        "s": tarfile.SYMTYPE,
        "c": tarfile.CHRTYPE,
        "b": tarfile.BLKTYPE,
        "p": tarfile.FIFOTYPE,
    }
    left_out = unpack(
        FOLDER,
        *(member(name, kind, "/etc/passwd") for name, kind in kinds.items()),
        to=tmp_path / "to",
    )
    assert left_out == list(kinds)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_hard_link_to_a_file_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="could not be taken out"):
        unpack(FOLDER, member("h", tarfile.LNKTYPE, "/etc/passwd"), to=tmp_path / "to")


def test_hard_links_count_as_often_as_they_are_written(tmp_path: Path) -> None:
    links = [member(f"h{n}", tarfile.LNKTYPE, "f") for n in range(5)]
    with pytest.raises(SandboxError, match="larger than the limit"):
        unpack(FOLDER, member("f", data=b"x" * 300), *links, to=tmp_path / "to")


def test_headers_that_name_their_own_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="extended or sparse"):
        unpack(FOLDER, member("ü" * 200, data=b"x"), to=tmp_path / "a", style=tarfile.PAX_FORMAT)
    with pytest.raises(SandboxError, match="extended or sparse"):
        unpack(FOLDER, member("s", tarfile.GNUTYPE_SPARSE, data=b"x"), to=tmp_path / "b")
    with pytest.raises(SandboxError, match="a name of"):
        unpack(FOLDER, member("n/" * 9000, data=b"x"), to=tmp_path / "c")


def test_a_damaged_archive_and_an_existing_target_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="could not be taken out"):
        unpack_untrusted(io.BytesIO(b"no archive" * 100), tmp_path / "to", 1000)
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(SandboxError, match="exists"):
        unpack(FOLDER, to=tmp_path / "link")


def test_many_files_are_bounded_in_number_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [member(f"./{number}") for number in range(20)]
    with monkeypatch.context() as patched:
        patched.setattr(archives, "MAX_MEMBERS", 10)
        with pytest.raises(SandboxError, match="more than 10 files"):
            unpack(FOLDER, *files, to=tmp_path / "number")
    monkeypatch.setattr(archives, "MAX_SECONDS", -1.0)
    with pytest.raises(SandboxError, match="and there are more"):
        unpack(FOLDER, *files, to=tmp_path / "time")
