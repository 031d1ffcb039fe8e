"""The table of chat templates in `docs/guides/models.md` says what the bench finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.template_matrix import (
    BEGIN,
    PAGE,
    REPLIES,
    Bench,
    Outcome,
    Row,
    conversations,
    rows_of,
    table,
    table_in,
    trl_templates,
)

COMMITTED = table_in(PAGE.read_text(encoding="utf-8"))
UNREAD = {"muse_glimmer"}
"""Its replies begin with a header that names who gets them."""


def line_of(row: Row) -> str:
    return table([row]).splitlines()[4]


@pytest.mark.parametrize("path", trl_templates(), ids=lambda path: path.stem)
def test_the_table_says_what_the_bench_finds(path: Path, tmp_path: Path) -> None:
    (row,) = rows_of([path], tmp_path)
    assert line_of(row) in COMMITTED.splitlines()
    assert row.equal == row.rendered
    assert row.rendered > 0
    assert (Outcome.UNREAD in row.replies.values()) == (path.stem in UNREAD)


def test_the_table_has_each_template_once() -> None:
    lines = COMMITTED.removeprefix(BEGIN).strip().splitlines()[2:-1]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line]
    assert sorted(names) == sorted(path.stem for path in trl_templates())
    whole = [line for line in lines if "25 of 25" in line and "not" not in line]
    assert len(whole) >= 16


def test_there_are_25_conversations() -> None:
    assert len(list(conversations())) == 25
    assert len(REPLIES) == 4


def test_a_prompt_that_differs_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in trl_templates() if path.stem == "qwen2_5")
    bench = Bench(path.stem, path.read_text(encoding="utf-8"), tmp_path)
    monkeypatch.setattr(bench, "_shown", lambda *arguments, **options: "another text")
    row = bench.row()
    assert (row.equal, row.rendered) == (0, 25)
    assert set(row.replies.values()) == {Outcome.NOT_WRITTEN}
