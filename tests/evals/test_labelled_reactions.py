"""The halves of the labelled reactions: how they were divided, and that no code but the evaluation reads the second."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

import openclaw_rl
from openclaw_rl.errors import ConfigError
from openclaw_rl.evals.labelled_reactions import SHIPPED_SET, Half, LabelledReaction, load_reactions

PACKAGE = Path(openclaw_rl.__file__).parent
MAY_READ_HELD_OUT = {"cli/evaluate_judge.py", "evals/judge_scores.py"}
LOADER = "labelled_reactions.py"


def shipped(half: Half) -> list[LabelledReaction]:
    return [one for one in load_reactions(half=None).reactions if one.half is half]


def test_the_shipped_set_is_large_and_varied() -> None:
    reactions = load_reactions(half=None).reactions
    assert len(reactions) >= 1200
    assert sum(one.language == "en" for one in reactions) > 0.4 * len(reactions)
    assert sum(one.expected is None for one in reactions) > len(reactions) / 3


def test_the_held_out_half_has_every_class_in_every_language() -> None:
    held_out = shipped(Half.HELD_OUT)
    assert len(held_out) >= 500
    assert len(shipped(Half.CALIBRATION)) >= 500
    every = {(one.language, one.kind) for one in load_reactions(half=None).reactions}
    assert {(one.language, one.kind) for one in held_out} == every


def test_the_first_rows_on_which_rules_were_measured_are_calibration_rows() -> None:
    first = [
        one for one in load_reactions(half=None).reactions if int(one.id.rsplit("-", 1)[1]) < 100
    ]
    assert len(first) == 428
    assert {one.half for one in first} == {Half.CALIBRATION}


def test_later_rows_are_divided_evenly_by_language_and_by_class_and_label() -> None:
    later = [
        one for one in load_reactions(half=None).reactions if int(one.id.rsplit("-", 1)[1]) > 100
    ]
    for cells in (
        Counter((one.language, one.half) for one in later),
        Counter((f"{one.kind} {one.expected}", one.half) for one in later),
    ):
        for cell in {name for name, _ in cells}:
            total = cells[cell, Half.HELD_OUT] + cells[cell, Half.CALIBRATION]
            assert abs(cells[cell, Half.HELD_OUT] / total - 0.5) < 0.2, (cell, total)


def test_no_reaction_of_one_half_repeats_a_long_one_of_the_other() -> None:
    texts = {half: {_plain(one) for one in shipped(half) if len(_plain(one)) > 12} for half in Half}
    assert not texts[Half.CALIBRATION] & texts[Half.HELD_OUT]


def _plain(one: LabelledReaction) -> str:
    return " ".join(str(one.item.reaction.messages[0]["content"]).lower().split())


def test_the_loader_gives_the_calibration_half_unless_asked() -> None:
    assert {one.half for one in load_reactions().reactions} == {Half.CALIBRATION}
    held_out = load_reactions(half=Half.HELD_OUT)
    assert {one.half for one in held_out.reactions} == {Half.HELD_OUT}
    assert held_out.name.endswith("(held_out)")


def write_set(path: Path, *halves: str | None) -> Path:
    row = {"language": "en", "class": "c", "expected": 1, "request": "2+3?", "reply": "5"}
    rows = [
        row
        | {"id": str(number), "reaction": {"role": "user", "content": f"fine {number}"}}
        | ({"half": half} if half else {})
        for number, half in enumerate(halves)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"version": 1}, *rows]))
    return path


@pytest.mark.parametrize("half", [*Half, None])
def test_a_set_that_is_not_divided_is_used_as_a_whole(tmp_path: Path, half: Half | None) -> None:
    loaded = load_reactions(write_set(tmp_path / "own.jsonl", None, None), half=half)
    assert len(loaded.reactions) == 2
    assert "(" not in loaded.name


def test_an_own_set_may_be_divided(tmp_path: Path) -> None:
    path = write_set(tmp_path / "own.jsonl", "calibration", "held_out", None)
    assert [one.id for one in load_reactions(path, half=Half.HELD_OUT).reactions] == ["1", "2"]
    with pytest.raises(ConfigError, match="no reactions in its half held_out"):
        load_reactions(write_set(tmp_path / "half.jsonl", "calibration"), half=Half.HELD_OUT)
    with pytest.raises(ConfigError, match=r"line 2: .*half"):
        load_reactions(write_set(tmp_path / "bad.jsonl", "training"))


def test_only_the_evaluation_reads_the_held_out_half() -> None:
    """A reader either names the half, or opens the file itself, or loads without a half: each is looked for."""
    readers = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if file.name != LOADER and _reads_held_out(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert "cli/evaluate_judge.py" in readers
    assert readers <= MAY_READ_HELD_OUT


def _reads_held_out(tree: ast.AST) -> bool:
    nodes = list(ast.walk(tree))
    return any(map(_knows_the_set, nodes)) and any(map(_is_a_use, nodes))


def _knows_the_set(node: ast.AST) -> bool:
    """Other sets have held-out halves, too: a module is asked only if it imports the loader or names the file."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(alias.name for alias in node.names)]
        return any(name.endswith("labelled_reactions") for name in names)
    if isinstance(node, ast.Import):
        return any(alias.name.endswith("labelled_reactions") for alias in node.names)
    return isinstance(node, ast.Constant) and node.value == SHIPPED_SET.name


def _is_a_use(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("HELD_OUT", "SHIPPED_SET")
    if isinstance(node, ast.Constant):
        return node.value in ("held_out", SHIPPED_SET.name)
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "SHIPPED_SET" for alias in node.names)
    return isinstance(node, ast.Call) and _loads_more_than_calibration(node)


def _loads_more_than_calibration(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "load_reactions":
        return False
    halves = [keyword.value for keyword in call.keywords if keyword.arg in ("half", None)]
    return any(ast.unparse(half) != "Half.CALIBRATION" for half in [*halves, *call.args[1:]])


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("load_reactions()", False),
        ("load_reactions(half=Half.CALIBRATION)", False),
        ("load_reactions(half=None)", True),
        ("loader.load_reactions(None, None)", True),
        ("load_reactions(**options)", True),
        ("half = Half.HELD_OUT", True),
        ("half = 'held_out'", True),
        ("from openclaw_rl.evals.labelled_reactions import SHIPPED_SET", True),
    ],
)
def test_each_way_to_the_held_out_half_is_found(code: str, reads: bool) -> None:
    imports = "from openclaw_rl.evals.labelled_reactions import Half, load_reactions\n"
    assert _reads_held_out(ast.parse(imports + code)) is reads


def test_the_file_by_its_name_is_found() -> None:
    assert _reads_held_out(ast.parse("open(ASSETS / 'evals' / 'reactions.jsonl')"))
    assert not _reads_held_out(ast.parse("split = 'held_out'"))
