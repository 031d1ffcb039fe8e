from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """Decision 8 in float64, written separately (tests/methods/reference.py)."""
    spec = importlib.util.spec_from_file_location(
        "reference_of_decision_8", Path(__file__).parent / "reference.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
