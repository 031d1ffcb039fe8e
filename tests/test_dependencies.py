"""What the package imports is declared, and the lock file of CI fits what is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

from aiohttp import web
from packaging.requirements import Requirement

from openclaw_rl.serve import http_connection
from openclaw_rl.serve.http_connection import GatewayConnection

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = ROOT / "requirements-ci.txt"
# Run in other programs, under Pythons that have what they import.
FOREIGN = (
    "openclaw_rl/environments/foreign/",
    "openclaw_rl/assets/",
    "openclaw_rl/other_trainers/slime/",
)


def declared(*extras: str) -> dict[str, Requirement]:
    """Requirements by normalised name. No extras: all."""
    groups = PROJECT["optional-dependencies"]
    chosen = extras or tuple(groups)
    lines = [*PROJECT["dependencies"], *(line for extra in chosen for line in groups[extra])]
    found = map(Requirement, lines)
    return {normalise(requirement.name): requirement for requirement in found}


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_all_imports_are_declared() -> None:
    known = declared()
    distributions = packages_distributions()
    undeclared: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        relative = str(path.relative_to(ROOT / "src"))
        if relative.startswith(FOREIGN):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for top in {name.split(".")[0] for name in names}:
                if top in sys.stdlib_module_names or top.startswith("openclaw"):
                    continue
                candidates = {normalise(one) for one in distributions.get(top, [top])}
                if not candidates & known.keys():
                    undeclared[top] = relative
    assert not undeclared


def test_the_lock_file_of_ci_fits() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    locked = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, requirement in declared("local", "demo", "dev").items():
        assert name in locked, f"{name}: run `make lock`"
        assert requirement.specifier.contains(locked[name], prereleases=True), name


def test_aiohttp_has_the_names_that_are_not_public() -> None:
    """Of the release that is installed. A new one first passes tests/serve/test_http_connection.py."""
    tree = ast.parse(Path(http_connection.__file__).read_text(encoding="utf-8"))
    connection = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == GatewayConnection.__name__
    )
    used = {
        node.attr
        for node in ast.walk(connection)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and node.attr.startswith("_")
    }
    own = {name for name in vars(GatewayConnection) if name.startswith("_")} | {
        node.attr
        for node in ast.walk(connection)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    inherited = used - (own - set(dir(web.RequestHandler)))
    missing = {name for name in inherited if not hasattr(web.RequestHandler, name)}
    # aiohttp's classes have slots, so that names of instances are attributes of the class.
    assert not missing
    assert {"_waiter", "_messages", "_request_count", "_force_close"} <= inherited
    bounds = declared()["aiohttp"].specifier
    assert bounds.contains(version("aiohttp"))
    assert not bounds.contains("4.0")
