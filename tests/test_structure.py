"""The rooms' walls, enforced over the syntax tree: imports flow one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "openclaw_rl"

LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"types", "credit", "errors", "canon", "digest", "durable", "patterns"}),
    frozenset(
        {
            "sections",
            "sections_judge",
            "spellings",
            "reading",
            "values",
            "checking",
            "config",
            "protocols",
            "observe",
            "lifeline",
            "plugins",
        }
    ),
    frozenset({"methods", "render", "store", "engines", "trainers", "environments", "testing"}),
    frozenset({"serve", "collect", "judge", "train", "trajectories"}),
    frozenset({"run", "system", "ending"}),
    frozenset(
        {
            "evaluate",
            "dashboard",
            "views",
            "watch",
            "doctor",
            "doctor_engine",
            "options",
            "chat",
            "connect",
            "reference",
            "rollback",
            "rollouts",
            "scaffold",
            "selftest",
            "signs",
            "troubles",
        }
    ),
    frozenset({"__main__", "cli", "commands_data", "commands_recipes", "commands_rollback", "commands_rollout"}),
)
APART = (2, 3)
"""On these levels no two rooms may know each other."""

HEAVY = frozenset({"torch", "llguidance", "transformers", "peft", "safetensors", "matplotlib", "openai"})
MAY_BE_HEAVY = ("engines/embedded", "trainers/", "evaluate/")


def level_of(room: str) -> int:
    return next(i for i, names in enumerate(LEVELS) if room in names)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    return [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).parts[0] != "__init__.py"]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only: a reader sees the room"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breach(importer: str, imported: str) -> str | None:
    if importer == imported:
        return None
    here, there = level_of(importer), level_of(imported)
    if there > here:
        return f"{importer} (level {here}) imports {imported} (level {there}): imports flow one way"
    if here == there and here in APART:
        return f"{importer} and {imported} are neighbours and never know each other"
    return None


def test_every_file_stands_on_a_level() -> None:
    assert sources()
    assert {room_of(p) for p in sources()} <= frozenset().union(*LEVELS)


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_flow_one_way(path: Path) -> None:
    found = [
        problem
        for name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("openclaw_rl.") and name != "openclaw_rl.__version__"
        if (problem := breach(room_of(path), name.split(".")[1]))
    ]
    assert not found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    relative = str(path.relative_to(SOURCE))
    heavy = {name.split(".")[0] for name in imports(ast.parse(path.read_text(encoding="utf-8")))} & HEAVY
    assert not heavy or relative.startswith(MAY_BE_HEAVY), f"{relative} imports {sorted(heavy)}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_config_reads_the_environment(path: Path) -> None:
    if path.name != "config.py":
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reads = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")]
        assert not reads, f"{path.name} line {reads[0].lineno} reads the environment"


def test_the_walls_would_be_noticed() -> None:
    assert breach("serve", "collect")
    assert breach("store", "run")
    assert breach("engines", "store")
    assert not breach("serve", "store")
