"""Two versions side by side: paired differences, and the report as text, JSON, HTML and PNG."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.evals.task_scores import EvalResult, TaskScore
from openclaw_rl.evals.versions import comparison_report
from openclaw_rl.evals.versions.paired_differences import paired_difference


def result(model: str, solved: dict[str, list[bool | None]], reply: str = "r") -> EvalResult:
    scores = [
        TaskScore(kind="personal", name=name, seed=seed, solved=one, reply=reply, scored_by="p")
        for name, ones in solved.items()
        for seed, one in enumerate(ones)
    ]
    return EvalResult(model=model, kinds=["personal"], tasks=scores)


def test_the_difference_is_of_tasks_that_both_versions_have_a_score_of() -> None:
    new = result("m@2", {"a": [True, True], "b": [True, False], "c": [None, None]})
    old = result("m@1", {"a": [False, False], "b": [True, None], "c": [True, True]})
    found = paired_difference(new, old, "personal")
    assert found is not None
    assert (found.tasks, found.new, found.old, found.mean) == (2, 1.0, 0.5, 0.5)
    assert found.low < 0 < found.high
    assert found.verdict == "not decided"
    none = result("m@1", {"a": [None]})
    assert paired_difference(none, none, "personal") is None


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("7", "version 7 does not exist; the newest is 0"),
        ("1e3", "'1e3': expected a number"),
        ("9" * 5000, "9…': expected a number"),
    ],
)
def test_a_version_that_does_not_exist_is_named_before_anything_starts(
    tmp_path: Path, version: str, reason: str
) -> None:
    for command in (["evaluate"], ["evaluate", "inspect", "task.py"]):
        arguments = [*command, "--policy", version, "--home", str(tmp_path)]
        done = CliRunner().invoke(
            cli, arguments if command == ["evaluate"] else [*arguments, "--program", "true"]
        )
        assert reason in str(done.exception), done.output
    assert not list(tmp_path.iterdir())


def test_seeds_of_one_task_are_no_more_evidence_than_one() -> None:
    once = paired_difference(result("n", {"a": [True]}), result("o", {"a": [False]}), "personal")
    often = paired_difference(
        result("n", {"a": [True] * 50}), result("o", {"a": [False] * 50}), "personal"
    )
    assert once is not None
    assert often is not None
    assert (once.low, once.high) == (often.low, often.high)


def test_a_clear_difference_is_decided_in_both_directions() -> None:
    good, bad = ({f"t{i}": [value] for i in range(20)} for value in (True, False))
    new, old = result("m@2", good), result("m@1", bad)
    assert "| personal | 20 | 1.00 | 0.00 | +1.00" in comparison_report.comparison_text(new, old)
    assert (
        comparison_report.comparison_json(new, old)["differences"]["personal"]["verdict"]
        == "better"
    )
    assert (
        comparison_report.comparison_json(old, new)["differences"]["personal"]["verdict"] == "worse"
    )


def test_the_folder_has_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    comparison_report.prepare_folder(folder)
    new = result("m@2", {"a": [True], "b": [False]}, reply="<script>alert(1)</script>")
    comparison_report.write_folder(
        folder, new, result("m@1", {"a": [False], "b": [False]}, reply="plain")
    )
    page = (folder / comparison_report.PAGE).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "data:image/png;base64,iVBOR" in page
    assert (folder / comparison_report.PICTURE).read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / comparison_report.DATA).read_text())["policy"] == "m@2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--against", "0"), "--against needs --policy"),
        (("--report", "r", "--policy", "1"), "--report writes a comparison"),
        (("--person-url", "http://127.0.0.1:9/v1"), "go together"),
        (("lm-eval", "--tasks", "t", "--program", "no-such-program"), "pip install 'lm-eval[api]'"),
        (("inspect", "t.py", "--program", "no-such-program"), "pip install inspect_ai openai"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_starts(
    words: tuple[str, ...], expected: str
) -> None:
    error = CliRunner().invoke(cli, ["evaluate", *words, "--home", "/proc/no-home"]).exception
    assert isinstance(error, ConfigError)
    assert expected in str(error)
