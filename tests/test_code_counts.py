"""`benchmarks/code_counts.py` counts what a planted module has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.code_counts import (
    PACKAGE,
    CodeCounts,
    count_code,
    count_files,
    source_files,
    table_rows,
)

MAX_DECISIONS_A_LINE = 0.252
MAX_WALRUSES = 1.5
MAX_WALRUSES_ELSEWHERE = 0
MAX_NESTED_CONDITIONALS = 0
MAX_DIALECT = 4
MODULE = '''"""A module."""

LIMIT, FACTOR = 1, 2  # packed


class Queue:
    def __init__(self, given: int) -> None:
        # A reason above its line.
        self.a, self.b = given, LIMIT
        first, second = sorted([1, 2])


def choose(rows: list[int], line: str) -> str:
    """Return a choice.

    The docstring is not code.
    """
    if (found := rows) and line:
        return "x" if rows else "y" if line else "z"
    for row in rows:
        assert row  # noqa: S101

    return str([row for row in found if row if (more := row)])
'''


def test_a_planted_module_is_counted() -> None:
    counts = count_code(MODULE)
    assert counts.lines == 23
    assert (counts.packed, counts.packed_attributes) == (2, 1)
    assert (counts.walruses, counts.walruses_elsewhere) == (2, 1)
    assert counts.nested_conditionals == 1
    assert (counts.comments, counts.trailing_comments) == (2, 1), (
        "a directive for a tool is not counted"
    )
    assert counts.dialect == 2, "`given` and `found`; a line of text is a standard name"


def test_decisions_are_counted_in_long_functions() -> None:
    """In `choose`: if, and, two conditional expressions, for, assert, a comprehension with two conditions."""
    counts = count_code(MODULE)
    assert counts.decisions == 9
    assert counts.long_function_code == 6
    assert counts.function_lines == 15


def test_a_lineage_named_line_is_dialect() -> None:
    function = "def use(line: Sequence[int]) -> None: ...\n\n\ndef read() -> None:\n    line = lineage(1)\n"
    assert count_code(function).dialect == 2


def test_a_class_with_many_fields_is_named() -> None:
    fields = "".join(f"        self.f{number} = 0\n" for number in range(20))
    source = f"class Wide:\n    def __init__(self) -> None:\n{fields}"
    assert count_code(source).wide_classes == ["Wide"]
    assert count_code(source.replace("        self.f19 = 0\n", "")).wide_classes == []


def test_the_script_prints_a_row_for_each_folder() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.code_counts",
        "--per-folder",
        str(PACKAGE / "examination"),
    ]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    header, _, row = ended.stdout.splitlines()
    assert header.count("|") == row.count("|") == len(table_rows(CodeCounts())) + 2
    assert row.startswith("| examination | ")


def test_the_lines_of_the_package_breathe() -> None:
    """The aims are those of the house rules; decisions a line are bounded by what is reached."""
    counts = count_files(source_files([PACKAGE]))
    assert counts.decisions / counts.long_function_code <= MAX_DECISIONS_A_LINE
    assert counts.tokens / counts.lines <= 6.5
    assert 1000 * counts.packed / counts.lines <= 3
    assert counts.packed_attributes == 0
    assert 1000 * counts.walruses / counts.lines <= MAX_WALRUSES
    assert counts.walruses_elsewhere <= MAX_WALRUSES_ELSEWHERE
    assert counts.nested_conditionals <= MAX_NESTED_CONDITIONALS
    assert counts.trailing_comments / counts.comments <= 0.5
    assert 1000 * counts.dialect / counts.function_lines <= MAX_DIALECT
    assert counts.wide_classes == []
