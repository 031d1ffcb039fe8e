"""Check plug-in files without running them: the functions that they must define, and the packages that they import.

A file with a star import is not checked for its functions.
"""

from __future__ import annotations

import ast
import importlib.util
import symtable
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from openclaw_rl.errors import PluginError
from openclaw_rl.plugins.loader import Plugin, compile_source, read_plugin
from openclaw_rl.settings.load import Config

LOSS_PARAMETERS = {
    "compute_loss": ("policy_logits", "reference_logits", "rewards", "advantages", "config"),
    "compute_opd_loss": ("student_logprobs", "teacher_logprobs", "advantage_mask", "clip_ratio"),
    "compute_hybrid_loss": (
        *("student_logprobs", "teacher_logprobs", "scalar_rewards"),
        *("opd_weight", "binary_weight", "clip_ratio"),
    ),
}
"""Function of a plug-in loss -> its parameters. A file defines one of them."""
GET_REWARD_MODEL = "get_reward_model"
COMPUTE_REWARD = "compute_reward"
"""A reward plug-in defines the function, or one class with the method."""


def check_plugin_files(config: Config) -> None:
    """Raise `PluginError` for a configured file that is missing, no Python, or breaks its contract. Runs no file."""
    named = {
        "train.loss.path": config.train.loss.path,
        "judge.plugin_path": config.judge.plugin_path if config.judge.kind == "plugin" else None,
        "rollout.function_path": config.rollout.function_path,
        "rollout.generate_path": config.rollout.generate_path,
    }
    for setting, path in named.items():
        if path is not None:
            _check_file(setting, path)


def _imports_all(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _check_file(setting: str, path: str) -> None:
    plugin, source = read_plugin(setting, path)
    compile_source(plugin, source)
    tree = ast.parse(source)
    _check_imports(plugin, tree)
    if any(_imports_all(node) for node in ast.walk(tree)):
        # What the file defines is not known.
        return
    bound, defined = _module_names(source)
    if setting == "train.loss.path":
        plugin.choose_name(bound, tuple(LOSS_PARAMETERS), defined)
    if setting == "judge.plugin_path" and GET_REWARD_MODEL not in bound and not _has_class(tree):
        raise reward_definition_error(plugin, defined)


def _has_class(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ClassDef) for node in ast.walk(tree))


def _module_names(source: bytes) -> tuple[set[str], list[str]]:
    """Return the names that the module binds anywhere at its top level, and those of its functions and classes."""
    symbols = symtable.symtable(
        importlib.util.decode_source(source), "<plug-in>", "exec"
    ).get_symbols()
    bound = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return bound, [
        s.get_name() for s in symbols if s.is_namespace() and not s.get_name().startswith("_")
    ]


def reward_definition_error(plugin: Plugin, present: Collection[str]) -> PluginError:
    """Return the error for a reward plug-in without a reward model. `present`: what the file defines instead."""
    there = " and ".join(present) or "nothing"
    return plugin.make_error(
        f"expected {GET_REWARD_MODEL}(config), or one class with {COMPUTE_REWARD}; it defines {there}"
    )


def _check_imports(plugin: Plugin, tree: ast.Module) -> None:
    """Raise `PluginError` if the file imports a package that is not installed. Imports in blocks may be optional."""
    for name, line in _imported_packages(tree):
        if not _can_import(name):
            raise plugin.make_error(
                f"imports {name}, which is not installed here ({sys.executable}). Install it, or remove the import; "
                "a plug-in cannot import the files beside it",
                line,
            )


def _imported_packages(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (top-level package, line) of the unconditional imports."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0], node.lineno


def _can_import(name: str) -> bool:
    """Return whether a worker can import the package. It is started with `-m`, so its path has the working folder."""
    known = name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None
    return known or PathFinder.find_spec(name, [str(Path.cwd())]) is not None
