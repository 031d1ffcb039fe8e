"""Tests of whole systems are marked, so that `make test` leaves them out and `make test-system` runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SYSTEM_FILES = sorted((HERE / "system").rglob("test_*.py"))


def has_system_marker(source: str) -> bool:
    """Return whether the module's `pytestmark` contains the marker `system`."""
    return any(
        isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == ["pytestmark"]
        and any(ast.unparse(part) == "pytest.mark.system" for part in ast.walk(node.value))
        for node in ast.parse(source).body
    )


@pytest.mark.parametrize("file", SYSTEM_FILES, ids=lambda file: file.stem)
def test_files_of_whole_systems_are_marked(file: Path) -> None:
    assert has_system_marker(file.read_text(encoding="utf-8"))


def test_a_missing_marker_is_found() -> None:
    assert has_system_marker("pytestmark = [pytest.mark.timeout(9), pytest.mark.system]\n")
    assert not has_system_marker("pytestmark = pytest.mark.timeout(9)\n")


def test_ci_runs_the_system_tests_of_each_folder() -> None:
    marked = {
        file.relative_to(HERE.parent).parts[1]
        for file in HERE.rglob("test_*.py")
        if "pytest.mark.system" in file.read_text(encoding="utf-8") and file.parent != HERE
    }
    named = set(re.findall(r"tests/(\w+)", (HERE.parent / ".ci" / "run").read_text()))
    assert marked == named
