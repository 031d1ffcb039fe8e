"""Digests of the code of environments: what tells two of them apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.environments.foreign.request_loop import (
    ForeignRefusal,
    files_digest,
    module_digest,
)


def write_pages(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    (folder / "index.html").write_text("<p>page</p>")
    (folder / "images" / "logo.png").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "LICENSE").write_text("free")
    return folder


def test_folders_with_equal_files_have_one_digest(tmp_path: Path) -> None:
    first, second = write_pages(tmp_path / "a"), write_pages(tmp_path / "b")
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "x.pyc").write_bytes(b"\0")
    assert files_digest(first) == files_digest(second)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "images" / "logo.png").write_bytes(b"\x89PNG\xff\xfd"),
        lambda folder: (folder / "LICENSE").write_text("paid"),
        lambda folder: (folder / "LICENSE").rename(folder / "LICENCE"),
        lambda folder: (folder / "more").write_text(""),
    ],
)
def test_each_byte_and_name_is_part_of_it(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = write_pages(tmp_path / "a")
    before = files_digest(folder)
    change(folder)
    assert files_digest(folder) != before


def test_a_module_is_its_file_and_a_package_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "env_with_parts"
    package.mkdir()
    (tmp_path / "env_of_one.py").write_text("a = 1")
    (package / "__init__.py").write_text("")
    (package / "rubric.py").write_text("a = 1")
    before = [module_digest(name) for name in ("env_of_one", "env_with_parts")]
    (tmp_path / "env_of_one.py").write_text("a = 2")
    (package / "rubric.py").write_text("a = 2")
    after = [module_digest(name) for name in ("env_of_one", "env_with_parts")]
    assert len({*before, *after}) == 4
    with pytest.raises(ForeignRefusal, match="the code of no_such_module"):
        module_digest("no_such_module")
