"""Checks of slime's own environment for `openclaw-rl doctor --trainer slime`. Its Python runs them and prints JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from openclaw_rl.common.parent_death import die_with_parent
from openclaw_rl.other_trainers.slime.interface import (
    HOOK_PARAMETERS,
    HOOK_PATH,
    RELEASE,
    ROLLOUT_PARAMETERS,
    ROLLOUT_PATH,
    SAMPLE_FIELDS,
    missing_fields,
    version_problem,
)

Outcome = tuple[bool, str]
"""(passed, observed value or what to do)"""


def check_environment() -> list[tuple[str, str, bool, str]]:
    """Return the checks: name, expectation, whether it holds, and what was observed or what to do."""
    checks: tuple[tuple[str, str, Callable[[], Outcome]], ...] = (
        ("slime", "this Python imports it", _check_import),
        ("version", f"{RELEASE} up to 0.4", _check_version),
        ("Sample", f"has the {len(SAMPLE_FIELDS)} fields that are filled", _check_fields),
        (
            "rollout function",
            "slime loads it by its path",
            lambda: _check_path(ROLLOUT_PATH, ROLLOUT_PARAMETERS),
        ),
        (
            "weight hook",
            "slime loads it by its path",
            lambda: _check_path(HOOK_PATH, HOOK_PARAMETERS),
        ),
    )
    return [(name, expected, *_run_check(check)) for name, expected, check in checks]


def _run_check(check: Callable[[], Outcome]) -> Outcome:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - whatever another project's modules raise when they are imported
        return (
            False,
            f"{type(error).__name__}: {error}. Run it with slime's Python: --trainer-python PATH",
        )


def _check_import() -> Outcome:
    module = importlib.import_module("slime.utils.types")
    return True, str(module.__file__)


def _check_version() -> Outcome:
    try:
        version = importlib.metadata.version("slime")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    problem = version_problem(version)
    return problem is None, problem or version


def _check_fields() -> Outcome:
    missing = missing_fields(importlib.import_module("slime.utils.types").Sample)
    if missing:
        return False, f"without {', '.join(missing)}. Install slime's tag v{RELEASE}"
    return True, "all of them"


def _check_path(path: str, parameters: tuple[str, ...]) -> Outcome:
    function: Any = importlib.import_module("slime.utils.misc").load_function(path)
    names = tuple(inspect.signature(function).parameters)
    return names == parameters, f"{path}({', '.join(names)})"


def print_checks() -> None:
    """Print the checks as one line of JSON. Ends with the doctor, also where a module of slime hangs."""
    die_with_parent()
    sys.stdout.write(json.dumps(check_environment()) + "\n")
