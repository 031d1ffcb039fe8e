"""What is said of `--held-out` where it holds out no task, or all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_rl.environments.commands import check_environment
from openclaw_rl.environments.registry import SourceRequest
from openclaw_rl.environments.types import PlayLimits


def write_tasks(folder: Path, share: float, *splits: str) -> SourceRequest:
    lines = [
        {"id": f"t{n}", "n": n} | ({"split": split} if split else {})
        for n, split in enumerate(splits)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SourceRequest(
        source="command",
        tasks=folder / "tasks.jsonl",
        held_out_share=share,
        command=("true",),
        search_path="/usr/bin:/bin",
    )


def warnings_of(
    folder: Path, request: SourceRequest, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    check_environment(folder, "", request, PlayLimits(seconds=300), 1, lambda fitness: None)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]


def test_a_share_that_holds_out_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings = warnings_of(tmp_path, write_tasks(tmp_path, 0.000001, "", ""), capsys)
    assert len(warnings) == 1
    assert "--held-out 1e-06 holds out none of 2 tasks" in warnings[0]
    assert "Raise the share" in warnings[0]


def test_a_share_that_holds_out_everything_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings = warnings_of(tmp_path, write_tasks(tmp_path, 1.0, "", ""), capsys)
    assert len(warnings) == 1
    assert "holds out all of 2 tasks" in warnings[0]


@pytest.mark.parametrize(("share", "splits"), [(0.0, ("", "")), (0.000001, ("held_out", ""))])
def test_nothing_is_said_where_the_splits_are_as_they_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float, splits: tuple[str, ...]
) -> None:
    assert warnings_of(tmp_path, write_tasks(tmp_path, share, *splits), capsys) == []
