from __future__ import annotations

from pathlib import Path

import pytest
from tests.learner.conftest import draw, tiny, trainer

__all__ = ["draw", "examples", "tiny", "trainer"]


@pytest.fixture(scope="session")
def examples() -> Path:
    return Path(__file__).parent.parent.parent / "examples" / "plugins"
