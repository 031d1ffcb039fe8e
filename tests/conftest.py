"""Options and markers of the whole suite."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False
)  # `make explore`
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz", type=int, default=1500, help="fuzzed requests in tests/system/test_fuzz.py"
    )
    parser.addoption(
        "--histories",
        type=int,
        default=500,
        help="random histories in tests/serve/test_replayed_history.py",
    )
    parser.addoption("--histories-seed", type=int, default=37, help="seed of those histories")
    parser.addoption(
        "--kills", type=int, default=10, help="kills in tests/sandbox/test_box_kills.py"
    )
    parser.addoption(
        "--slime-source",
        help="checkout of slime 0.3.1 whose data classes tests/train/test_slime*.py run",
    )
    parser.addoption(
        "--need-sandbox", action="store_true", help="fail instead of skip if bubblewrap is missing"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "system: starts processes, or trains for long; run by `make test-system`"
    )


def pytest_collection_finish() -> None:
    """Leave the modules and the twelve thousand tests, which last to the end, out of collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def restored_log() -> Iterator[None]:
    """Undo `setup_logging` after a test.

    pytest captures a logger that does not propagate a second time, and a handler would write to the closed capture of
    an earlier test.
    """
    logger = logging.getLogger("openclaw_rl")
    before = list(logger.handlers)
    yield
    logger.propagate = True
    for handler in list(logger.handlers):
        if handler not in before:
            logger.removeHandler(handler)
            handler.close()


THREAD_SECONDS = 240.0
POOL_PREFIXES = ("large-request_", "tqdm", "pymp")
"""Threads of pools that last as long as the process."""


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread, which would work and log during the tests after it."""
    before = set(threading.enumerate())
    yield
    started = {
        thread
        for thread in set(threading.enumerate()) - before
        if not thread.name.startswith(POOL_PREFIXES)
    }
    for thread in started:
        thread.join(THREAD_SECONDS)
    assert [thread.name for thread in started if thread.is_alive()] == []
