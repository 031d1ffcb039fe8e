from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.judge.world import World

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    config = from_flat({"home": str(tmp_path), "judge.poll": 0.01, "judge.workers": 2})
    store = Store.open(config.store_path)
    yield World(config, store)
    store.close()


@pytest.fixture
def ids() -> Callable[[int], list[str]]:
    return lambda count: [f"t{number:02}" for number in range(count)]
