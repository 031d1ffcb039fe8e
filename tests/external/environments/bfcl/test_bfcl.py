"""Rows of bfcl-eval as tasks: its own checker gives each reply the verdict that ours gives (`make test-env-bfcl`)."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from examples.tools.bfcl_tasks import convert_rows
from tests.external.environments.conftest import LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem

from openclaw_rl.environments.sources.tools.answer_checks import BfclCheck, parse_checks
from openclaw_rl.environments.sources.tools.call_matching import CallMade

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".bfcl-venv/bin/python"
CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
OTHER_VALUES: Sequence[Any] = (
    "",
    "other",
    0,
    1,
    2.0,
    True,
    None,
    [],
    [""],
    [1],
    [1.0],
    {},
    [{}],
    {"other": 1},
    [[]],
)

pytestmark = pytest.mark.timeout(900)
Calls = list[dict[str, Any]]


@pytest.fixture(scope="session")
def data() -> Path:
    found = subprocess.run(
        [PYTHON, "-c", "import bfcl_eval; print(bfcl_eval.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(found.stdout.strip()) / "data"


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}


def write_values(value: Any) -> Iterator[Any]:
    """Yield values that are nearly `value`: other types and another spelling."""
    if isinstance(value, str):
        yield from (value.upper(), f" {value}.", value.replace(" ", ""), value + "x", [value])
    if isinstance(value, int | float):
        yield from (float(value), int(value), value + 1, str(value), bool(value), [value])
    if isinstance(value, list):
        yield from (value[::-1], value[1:], [*value, *value[:1]], value[0] if value else None)
        for nearer in write_values(value[0]) if value else ():
            yield [nearer, *value[1:]]
    if isinstance(value, dict):
        yield {**value, "more": 1}
        for name in value:
            yield {key: one for key, one in value.items() if key != name}
            for nearer in write_values(value[name]):
                yield {**value, name: nearer}


def vary_calls(
    solution: Calls, ground_truth: Sequence[Mapping[str, Any]], draw: random.Random
) -> Iterator[Calls]:
    """Yield the solution and calls that differ from it in one place."""
    yield solution
    yield solution[::-1]
    yield [*solution, solution[0]]
    yield solution[1:]
    for at, call in enumerate(solution):
        (tool, arguments), (truth,) = next(iter(call.items())), ground_truth[at].values()
        others: list[Calls] = [[{tool + "s": arguments}], [{tool: {**arguments, "more": 1}}]]
        for name in arguments:
            others.append([{tool: {key: one for key, one in arguments.items() if key != name}}])
        for name, alternatives in truth.items():
            values = [*alternatives, *draw.sample(OTHER_VALUES, 4)]
            nearly = [
                one for value in (arguments.get(name), *alternatives) for one in write_values(value)
            ]
            values += draw.sample(nearly, min(6, len(nearly)))
            others += [[{tool: {**arguments, name: value}}] for value in values]
        for other in others:
            yield [*solution[:at], *other, *solution[at + 1 :]]


def ask_own_checker(rows: Sequence[Mapping[str, Any]]) -> list[list[bool | None]]:
    """Return the verdict of each reply of each row."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run(
        [PYTHON, Path(__file__).parent / "own_checker.py"],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("category", [*CATEGORIES, *LIVE])
def test_each_reply_gets_the_verdict_of_the_own_checker(
    data: Path, category: str, tmp_path: Path
) -> None:
    file = data / f"BFCL_v4_{category}.json"
    rows, answers = read_rows(file), read_rows(data / "possible_answer" / file.name)
    draw, asked, ours = random.Random(1), list[dict[str, Any]](), list[list[bool]]()
    for task in convert_rows(file).tasks:
        row = task["id"].removeprefix("bfcl/")
        truth = answers[row]["ground_truth"]
        (check,) = parse_checks([task["check"]], row, tmp_path)
        assert isinstance(check, BfclCheck)
        replies = list(
            vary_calls([{call["tool"]: call["arguments"]} for call in task["calls"]], truth, draw)
        )
        ours.append([bool(check.score_calls(as_made(calls))) for calls in replies])
        asked.append(
            {
                "function": rows[row]["function"],
                "ground_truth": truth,
                "category": category,
                "calls": replies,
            }
        )
    theirs = ask_own_checker(asked)
    differing = [
        (one, calls, is_right)
        for one, found, own in zip(asked, ours, theirs, strict=True)
        for calls, is_right, valid in zip(one["calls"], found, own, strict=True)
        if is_right is not bool(valid)
    ]
    if (
        category == "parallel"
    ):  # theirs takes the first call that matches, which may leave none for the next
        (one, calls, is_right), *differing = differing
        assert is_right
        assert ask_own_checker([{**one, "calls": [calls, calls[::-1]]}]) == [[False, True]], (
            "only the order differs"
        )
    assert not differing
    right, all_replies = sum(map(sum, ours)), sum(map(len, ours))
    assert all_replies > right > len(rows) / 2
    logging.getLogger(__name__).warning(
        "%s: %d replies, %d of them right", category, all_replies, right
    )


def as_made(calls: Calls) -> list[CallMade]:
    return [
        CallMade(tool=tool, arguments=arguments)
        for call in calls
        for tool, arguments in call.items()
    ]


def take_rows(data: Path, folder: Path, rows: int, *categories: str) -> Path:
    """Make a folder of BFCL with the first rows of each category, or of these."""
    (folder / "possible_answer").mkdir(parents=True)
    for file in [*data.glob("BFCL_*.json"), *data.glob("possible_answer/BFCL_*.json")]:
        if categories and file.stem.removeprefix("BFCL_v4_") not in categories:
            continue
        lines = file.read_text().splitlines()[:rows]
        (folder / file.relative_to(data)).write_text("\n".join(lines))
    return folder


def write_tasks(folder: Path) -> tuple[Path, str]:
    """Write the task file of a folder of BFCL. Returns it, and what the program says."""
    out = folder / "tasks.jsonl"
    program = ROOT / "examples" / "tools" / "bfcl_tasks.py"
    command = [sys.executable, str(program), str(folder), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return out, done.stderr


def test_a_folder_of_rows_is_checked_and_played(
    data: Path, system: RecordedSystem, tmp_path: Path
) -> None:
    command = LibraryCommand(system, tmp_path / "tmp", PYTHON)
    tasks, notes = write_tasks(take_rows(data, tmp_path / "data", 2))
    process = command.start_words("check", "tools", "--tasks", str(tasks))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert (
        out.splitlines()[-1]
        == f"{2 * len((*CATEGORIES, *LIVE, 'irrelevance', 'live_irrelevance'))} tasks, 0 unfit"
    )
    assert "left out: format_sensitivity, live_relevance, memory, multi_turn_base" in notes
    few = take_rows(data, tmp_path / "few", 1, "irrelevance", "simple_python")
    write_tasks(few)
    (few / "tools.json").write_text(
        json.dumps({"tasks": "tasks.jsonl", "request": {"max_tokens": 24}})
    )
    words = (f"tools:{few / 'tools.json'}", "--run", "rows", "--group", "2", "--json")
    process = command.start_words("run", *words)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["tasks"]["bfcl/irrelevance_0"] == {"done": 2, "mean_reward": 1.0}, (
        "the starter calls no tool"
    )
    assert found["tasks"]["bfcl/simple_python_0"] == {"done": 2, "mean_reward": 0.0}
    command.assert_captured("rows")
    command.assert_nothing_left()
