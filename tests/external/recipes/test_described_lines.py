"""Every line of the published descriptions' shell blocks, run for real: it works, or one line says what it needs.

`tests/settings/descriptions/shell.yaml` has the lines and their outcomes. `--lines-table FILE` writes what each did.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.external.recipes.described_lines import LineResult, LineRunner, settings_in
from tests.external.recipes.lines_table import LinesTable
from tests.external.recipes.running import ROOT

from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.gpu_devices import count_gpus

pytestmark = pytest.mark.timeout(600)
SHELL = yaml.safe_load(
    (ROOT / "tests" / "settings" / "descriptions" / "shell.yaml").read_text(encoding="utf-8")
)
DEFAULTS = Config().model_dump(mode="json")
STARTS = "check: nothing speaks against a start of "
OURS = "openclaw-rl: "


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> LineRunner:
    return LineRunner(tmp_path_factory.mktemp("lines"))


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> LinesTable:
    file = request.config.getoption("--lines-table")
    return LinesTable(file=Path(file) if file else None)


def runnable(line: str) -> str:
    """Return what runs: flags alone are those of `up`, and of a job the command that Ray runs."""
    line = line.strip()
    if line.startswith("--"):
        return f"openclaw-rl up {line}"
    if line.startswith("ray job submit"):
        options, _, command = line.partition(" -- ")
        return f"(cd ..; {command.lstrip()}\n)" if "--working-dir .." in options else command
    return line


@pytest.mark.parametrize("block", SHELL, ids=lambda block: str(block["title"]))
def test_every_line_of_a_block_runs(
    block: dict[str, Any], runner: LineRunner, table: LinesTable, tmp_path: Path
) -> None:
    lines = [runner.fill_in(runnable(row["line"])) for row in block["lines"]]
    name = str(SHELL.index(block))
    where = block.get("cwd", ".")
    folder = tmp_path if where == ".." else runner.clone(name, lines) / where
    given = {key: runner.fill_in(value) for key, value in block.get("given", {}).items()}
    results = runner.run_lines(name, lines, folder=folder, given=given)
    failures = []
    for row, result in zip(block["lines"], results, strict=True):
        try:
            outcome = check_line(row, result, runner, folder)
            table.add_line(block["title"], row["line"], outcome)
        except AssertionError as error:
            failures.append(f"{row['line']}: {error}\n{result}")
    table.write()
    assert not failures, "\n\n".join(failures)


def check_line(row: Mapping[str, Any], result: LineResult, runner: LineRunner, folder: Path) -> str:
    """Compare what a line did with its outcome. Return it in words."""
    assert "Traceback" not in result.errors or "needs" in row, "a traceback"
    page = row.get("instead")
    if page is not None:
        assert page["words"] in (ROOT / page["page"]).read_text(encoding="utf-8")
    if "needs" in row:
        assert result.code != 0
        assert row["needs"] in result.errors
        return "needs what is not here: " + last_line_with(row["needs"], result.errors)
    if "succeeds" in row or "runs" in row:
        assert (result.code, result.errors if "succeeds" in row else "") == (0, "")
        return "works"
    if "installs" in row:
        assert (result.code, f"Would install {row['installs']}-" in result.output) == (0, True)
        return f"works: pip would install {row['installs']}"
    if is_variable(row["line"]):
        return check_variables(row, result, runner, folder)
    return check_command(row, result, runner)


def is_variable(line: str) -> bool:
    return line.startswith("export ") or line.split("=")[0].isidentifier()


def check_variables(
    row: Mapping[str, Any], result: LineResult, runner: LineRunner, folder: Path
) -> str:
    """Ask `openclaw-rl` what the variables of a line set. `make test` checks the notes."""
    assert result.code == 0
    assert result.changed
    shown = runner.run_command(
        ["openclaw-rl", "config", "show"], folder=folder, given=result.changed
    )
    if "refused" in row:
        assert shown.code == 1
        assert row["refused"] in shown.errors
        return "refused for a whole system: " + last_line_with(row["refused"], shown.errors)
    assert (shown.code, shown.errors) == (0, "")
    tree = yaml.safe_load(shown.output)
    for key, value in row.get("sets", {}).items():
        if f"# {key.rpartition('.')[2]}: (set)" not in shown.output:
            check_value(key, value_in(tree, key), value, runner)
    return "works: sets " + ", ".join(row["sets"]) if "sets" in row else "accepted, with a note"


def value_in(tree: Any, key: str) -> Any:
    value = tree
    for part in key.split("."):
        value = value[part]
    return value


def check_command(row: Mapping[str, Any], result: LineResult, runner: LineRunner) -> str:
    if "refused" in row:
        assert result.code != 0
        (line,) = [each for each in result.errors.splitlines() if row["refused"] in each]
        assert result.errors.splitlines()[-1] == line, "the last line says it"
        return f"refused: {line.removeprefix(OURS)}"
    check_settings(row, result.output, result.errors, runner)
    gpus = count_gpus() or 0
    stops = row.get("stops") or ("and this machine has" if gpus < row.get("gpus", 0) else None)
    last = result.errors.splitlines()[-1]
    if stops is None:
        assert (result.code, last.startswith(STARTS)) == (0, True)
        return f"works: {last.removeprefix('check: ')}"
    assert result.code == 1
    assert last.startswith(OURS)
    assert stops in last
    return f"works up to what it needs: {last.removeprefix(OURS)}"


def check_settings(row: Mapping[str, Any], output: str, errors: str, runner: LineRunner) -> None:
    settings = settings_in(output)
    secrets = [line for line in output.splitlines() if line.startswith("# ")]
    for key, value in row.get("sets", {}).items():
        if any(line.startswith(f"# {key}: (set)") for line in secrets):
            continue
        # What is the default anyway is not printed.
        actual = settings[key] if key in settings else value_in(DEFAULTS, key)
        check_value(key, actual, value, runner)
    for words in row.get("notes", ()):
        assert words in output + errors, words


def check_value(key: str, actual: Any, value: Any, runner: LineRunner) -> None:
    expected = filled(value, runner)
    assert actual == (pytest.approx(expected) if isinstance(value, float) else expected), key


def filled(value: Any, runner: LineRunner) -> Any:
    if isinstance(value, str):
        return runner.fill_in(value)
    return int(runner.port) if value == 8000 else value


def last_line_with(words: str, errors: str) -> str:
    lines = [line for line in errors.splitlines() if words in line]
    return lines[-1].removeprefix(OURS).strip()
