from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trajectories.world import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home.open(tmp_path / "home")
    yield made
    made.store.close()
