"""The layout of the package, checked over the syntax tree: which folder may import which, sizes, and names."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from openclaw_rl.common.integrations import ENGINES, TRAINERS

SOURCE = Path(__file__).parent.parent / "src" / "openclaw_rl"

BASE = "reasons types errors common settings"
MAY_IMPORT = {
    "reasons": "",
    "types": "reasons",
    "errors": "",
    "common": "reasons types errors",
    "methods": "reasons types",
    "protocols": "reasons types common methods",
    "testing": "reasons types errors common methods",
    "settings": "reasons types errors common methods protocols",
    "store": "reasons types errors common",
    "plugins": BASE,
    "render": BASE,
    "examination": f"{BASE} store render",
    "collect": f"{BASE} store",
    "tinker": BASE,
    "engines": f"{BASE} protocols tinker",
    "fireworks": f"{BASE} engines",
    "learner": f"{BASE} protocols methods plugins tinker",
    "serve": f"{BASE} protocols store render engines examination",
    "judge": f"{BASE} protocols store render engines plugins",
    "gates": f"{BASE} methods protocols store render judge examination",
    "practice": f"{BASE} methods protocols store render gates examination",
    "other_trainers": f"{BASE} protocols methods engines",
    "train": f"{BASE} protocols store render methods learner gates practice other_trainers",
    "trajectories": f"{BASE} store render learner methods",
    "compat": f"{BASE} learner",
    "environments": f"{BASE} protocols store render plugins sandbox",
    "supervisor": f"{BASE} protocols methods store plugins render engines collect serve judge gates practice train "
    "trajectories environments examination page",
    "status": f"{BASE} methods store render engines train",
    "owner_acts": f"{BASE} store train status",
    "page": f"{BASE} store render train status owner_acts",
    "connect": f"{BASE} render supervisor",
    "sandbox": BASE,
    "model_export": f"{BASE} render engines learner",
    "rollouts": f"{BASE} plugins supervisor",
    "evals": f"{BASE} protocols judge supervisor sandbox",
    "doctor": f"{BASE} protocols store render engines other_trainers train trajectories supervisor status rollouts "
    "sandbox",
    "cli": f"{BASE} store render plugins train trajectories supervisor status connect rollouts evals doctor "
    "environments tinker other_trainers engines fireworks model_export owner_acts",
    "__main__": "cli",
}
"""Folder or root module -> what it may import. The stages (serve, collect, judge, train) never import one another."""

STAGES = ("serve", "collect", "judge", "train")
HEAVY = frozenset(
    {"torch", "llguidance", "transformers", "peft", "safetensors", "matplotlib", "openai", "tinker"}
)
MAY_IMPORT_HEAVY = (
    *(
        "engines/embedded/",
        "learner/",
        "model_export/",
        "tinker/",
        "compat/",
        "evals/",
        "serve/dialects/forced_format.py",
    ),
    "environments/foreign/",  # programs under other Pythons
    "other_trainers/slime/weight_update.py",  # runs in slime's trainer
)
MAX_LINES, MAX_FILES, MAX_ROOT_MODULES, MAX_ONE_WORD = 500, 25, 6, 0.45


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Dotted module name below the package -> (path, syntax tree)."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only: a reader sees the folder"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(name: str) -> set[str]:
    """Our modules that a module imports, as dotted names below the package."""
    modules = sources()
    found = set()
    for full in imported_names(modules[name][1]):
        parts = full.split(".")[1:] if full.startswith("openclaw_rl.") else []
        while parts and ".".join(parts) not in modules:
            parts.pop()
        found.add(".".join(parts))
    return found - {"", name}


def folder_of(name: str) -> str:
    return name.split(".")[0]


def forbidden_import(importer: str, imported: str) -> str | None:
    here, there = folder_of(importer), folder_of(imported)
    if here == there or there in MAY_IMPORT[here].split():
        return None
    return f"{importer} imports {imported}: {here} may import {MAY_IMPORT[here]}"


def test_folders_import_only_what_the_table_allows() -> None:
    problems = [
        problem
        for name in sources()
        if name != "__init__"
        for imported in imported_modules(name)
        if (problem := forbidden_import(name, imported))
    ]
    assert not problems


def test_the_table_has_no_circle_and_keeps_the_stages_apart() -> None:
    graph = {folder: allowed.split() for folder, allowed in MAY_IMPORT.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())
    assert not [(a, b) for a in STAGES for b in STAGES if b in graph[a]]


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imported_modules(name) for name in sources() if name != "__init__"}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_output_passes_the_modules_that_make_it_harmless() -> None:
    """`rich.console.Console` and `click.echo` print what data contains: markup, escape sequences, direction marks."""
    raw = {"rich.console.Console", "click.echo", "click.secho"}
    found = []
    for name, (_, tree) in sources().items():
        named = {
            f"{n.value.id}.{n.attr}"
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
        }
        if (set(imported_names(tree)) | named) & raw:
            found.append(name)
    assert sorted(found) == ["common.printable", "common.terminal"]


def test_a_forbidden_import_is_found() -> None:
    assert forbidden_import("serve.gateway", "collect.link")
    assert forbidden_import("store.db", "supervisor.supervisor")
    assert forbidden_import("engines.base", "store.db")
    assert not forbidden_import("serve.gateway", "store.db")


def test_heavy_libraries_stay_in_their_folders() -> None:
    problems = []
    for path, tree in sources().values():
        relative = str(path.relative_to(SOURCE))
        heavy = {name.split(".")[0] for name in imported_names(tree)} & HEAVY
        if heavy and not relative.startswith(MAY_IMPORT_HEAVY):
            problems.append(f"{relative} imports {sorted(heavy)}")
    assert not problems


_HELP_SCRIPT = """
import contextlib, io, json, sys
before = set(sys.modules)
from openclaw_rl.cli.main import cli
with contextlib.redirect_stdout(io.StringIO()):
    cli(sys.argv[1:], standalone_mode=False)
added = {name.partition(".")[0] for name in set(sys.modules) - before}
json.dump(sorted(added - set(sys.stdlib_module_names)), sys.stdout)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["policies", "--help"], ["undo", "--help"], ["env", "--help"]]
)
def test_help_imports_no_library_but_click(arguments: list[str]) -> None:
    """Each library costs time at every start: SQLAlchemy and numpy alone took 0.4 s of `openclaw-rl --help`."""
    command = [sys.executable, "-c", _HELP_SCRIPT, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == ["click", "openclaw_rl"]


def test_only_the_store_knows_its_tables() -> None:
    users = [name for name in sources() if "store.schema" in imported_modules(name)]
    assert not [name for name in users if folder_of(name) != "store"]


def test_only_the_settings_read_the_environment() -> None:
    found = [
        f"{name} line {node.lineno}"
        for name, (_, tree) in sources().items()
        if name != "settings.load"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not found


MAY_OPEN_CONNECTIONS = {
    "common.http.blocking": {"urllib.request.build_opener"},
    "common.http.sessions": {"aiohttp.ClientSession"},
    # Runs in another program, Open WebUI, to the address that its owner set.
    "assets.feedback.open_webui_function": {"aiohttp.ClientSession"},
    # Run under other Pythons: to the gateway alone, and with a NO_PROXY that names this machine.
    "environments.foreign.policy_chat": {"urllib.request.build_opener"},
    "environments.foreign.verifiers_worker": {"openai.AsyncOpenAI"},
}
"""Modules with HTTP clients of their own. All others use `common.http`, whose requests to this machine are direct."""
_CLIENTS = frozenset(
    {f"aiohttp.{name}" for name in ("ClientSession", "request", "TCPConnector", "UnixConnector")}
    | {f"urllib.request.{name}" for name in ("urlopen", "build_opener", "urlretrieve")}
    | {f"http.client.{name}" for name in ("HTTPConnection", "HTTPSConnection")}
)
_CLIENT_LIBRARIES = frozenset({"httpx", "requests", "urllib3", "openai", "anthropic", "websockets"})


def made_clients(tree: ast.AST) -> set[str]:
    """HTTP clients that a module makes or imports, and names of libraries that do. An annotation makes none."""
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for place in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if place is not None
        for part in ast.walk(place)
    }
    imported = set(imported_names(tree))
    used = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and id(node) not in annotations
    }
    libraries = {name for name in imported if name.split(".")[0] in _CLIENT_LIBRARIES}
    return ((imported | used) & _CLIENTS) | libraries


def test_one_door_makes_http_clients() -> None:
    made = {name: made_clients(tree) for name, (_, tree) in sources().items()}
    connectors = {"aiohttp.TCPConnector", "aiohttp.UnixConnector"}
    allowed = {**MAY_OPEN_CONNECTIONS}
    allowed["common.http.sessions"] = allowed["common.http.sessions"] | connectors
    assert {name: clients for name, clients in made.items() if clients} == allowed


def test_a_client_of_its_own_is_found() -> None:
    assert made_clients(ast.parse("import aiohttp\nx = aiohttp.ClientSession()"))
    assert made_clients(ast.parse("from urllib.request import urlopen"))
    assert made_clients(ast.parse("import httpx"))
    assert not made_clients(ast.parse("def f(x: aiohttp.ClientSession) -> None: ..."))


def test_files_and_folders_stay_small() -> None:
    lines = {
        name: path.read_text(encoding="utf-8").count("\n") for name, (path, _) in sources().items()
    }
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}
    folders = Counter(path.parent for path, _ in sources().values() if path.name != "__init__.py")
    assert {str(folder): n for folder, n in folders.items() if n > MAX_FILES} == {}
    assert len(list(SOURCE.glob("*.py"))) <= MAX_ROOT_MODULES


def functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for _, tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) and not node.name.startswith("__"):
                yield node


def test_names_say_what_they_mean() -> None:
    classes = Counter(
        n.name
        for _, tree in sources().values()
        for n in ast.walk(tree)
        if isinstance(n, ast.ClassDef)
    )
    assert {name: n for name, n in classes.items() if n > 1} == {}, "one class, one name"
    one_word = [f.name for f in functions() if "_" not in f.name.strip("_")]
    assert len(one_word) <= MAX_ONE_WORD * len(list(functions())), Counter(one_word).most_common(20)


def test_the_glossary_names_files_that_exist() -> None:
    glossary = (SOURCE.parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = [
        part
        for line in glossary.splitlines()
        if line.startswith("|")
        for part in line.split("`")[1::2]
    ]
    paths = [name for name in named if name.endswith((".py", "/"))]
    assert len(paths) > 60
    roots = (SOURCE, SOURCE.parents[1])
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


SPEC_MODULES = frozenset(
    reference.partition(":")[0]
    for group in (ENGINES, TRAINERS)
    for reference in group.built_in.values()
)
ALLOWED_NAME_TABLES = {"common.integrations": 2, "settings.schema": 1}
"""Module -> displays with such names that decide nothing: the built-in specs, and the sections with keys."""
NAMES_BY_KEY = {"backend": ENGINES.names(), "trainer": TRAINERS.names()}


_DECIDES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def name_comparisons(tree: ast.AST) -> list[int]:
    """Lines that decide by the name of an engine or a trainer.

    That is: a comparison of something called `backend` or `trainer`, a rule or a table by such names.
    """
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], _DECIDES):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            operands = [node.subject]
        elif isinstance(node, ast.Subscript):
            operands = [node.slice]
        elif isinstance(node, ast.Call) and called_name(node) in ("get", "_only_with"):
            operands = node.args[:1]
        elif isinstance(node, ast.Call) and called_name(node) in ("startswith", "endswith"):
            operands = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        else:
            operands = []
        if any(map(names_an_integration, operands)) or is_table_of_names(node):
            lines.append(node.lineno)
    return lines


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def names_an_integration(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in ("engine.backend", "train.trainer")
    return getattr(node, "attr", getattr(node, "id", None)) in NAMES_BY_KEY


def is_table_of_names(node: ast.AST) -> bool:
    """Whether a display has the names of two engines or two trainers."""
    elements = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    values = {each.value for each in elements if isinstance(each, ast.Constant)}
    return any(len(values & set(names)) > 1 for names in NAMES_BY_KEY.values())


def test_only_specs_compare_names_of_engines_and_trainers() -> None:
    found = {
        name: lines
        for name, (_, tree) in sources().items()
        if f"openclaw_rl.{name}" not in SPEC_MODULES and (lines := name_comparisons(tree))
    }
    assert {name: len(lines) for name, lines in found.items()} == ALLOWED_NAME_TABLES, found


@pytest.mark.parametrize(
    "planted",
    [
        "config.engine.backend == 'vllm'",
        "'tinker' != config.train.trainer",
        "backend in LOCAL_BACKENDS",
        "LOCAL_BACKENDS = ('embedded', 'vllm')",
        "METRICS.get(train.trainer, ())",
        "METRICS[train.trainer]",
        "{'local': 1, 'tinker': 2}",
        "_only_with('train.trainer', ('local',), 'train.seed')",
        "config.engine.backend.startswith('v')",
        "match config.engine.backend:\n    case 'vllm': pass",
    ],
)
def test_a_comparison_of_names_is_found(planted: str) -> None:
    assert name_comparisons(ast.parse(planted))


STARTS = {"Supervisor", "open_train_loop"}
"""Called to run workers as processes, and to train in the process of a command."""


def functions_that_start(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions of a module or a class that start something; functions inside count as theirs."""
    for outer in (tree, *(each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))):
        for node in ast.iter_child_nodes(outer):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and STARTS & called(node):
                yield node


def called(tree: ast.AST) -> set[str]:
    return {called_name(each) for each in ast.walk(tree) if isinstance(each, ast.Call)}


def forgets_consent(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return "admit_start" not in called(function)


def test_nothing_starts_without_consent() -> None:
    """A worker's process is started by `Supervisor` alone; `train.worker` runs in such a process."""
    found = [
        f"{name}.{function.name}"
        for name, (_, tree) in sources().items()
        if name != "train.worker"
        for function in functions_that_start(tree)
        if forgets_consent(function)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("planted", "is_found"),
    [
        ("def run(config):\n    Supervisor(config, WORKERS).run(stop)", True),
        ("def run(config):\n    loop = worker.open_train_loop(config, store)", True),
        (
            "def run(config):\n    admit_start(config, WORKERS, yes=yes)\n    Supervisor(config)",
            False,
        ),
    ],
)
def test_a_start_without_consent_is_found(planted: str, is_found: bool) -> None:
    assert any(map(forgets_consent, functions_that_start(ast.parse(planted)))) is is_found
