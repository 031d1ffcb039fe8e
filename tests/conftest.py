"""Options and markers of the whole suite."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)  # `make explore`
settings.load_profile("repeatable")

SYSTEM_TESTS = (
    *("system", "plugins/test_system.py", "plugins/test_rollouts.py", "plugins/test_rollout_selftest.py"),
    *(
        "learner/distributed/test_ranks.py",
        "learner/distributed/test_process_group.py",
        "learner/test_gpu_benchmarks.py",
        "evals/test_cli_args.py",
    ),
    *("train/test_crash.py", "train/test_checkpoints.py", "train/test_data_stream.py", "serve/test_full_disk.py"),
    *("practice/test_practice_crash.py", "engines/remote/test_sglang_launch.py"),
    *("train/test_undo_exactness.py", "train/test_garbage.py", "train/test_own_policies.py"),
    *("train/test_learning_rate.py", "train/test_satisfaction_watch.py", "trajectories/test_identity.py"),
    *("learner/test_learning.py", "learner/test_teachers.py", "learner/model/test_compile.py"),
    *("evals/test_sample_efficiency.py", "evals/test_gate_trial.py", "evals/test_personalisation_benchmark.py"),
    "judge/test_local_model.py",
)
"""Below this folder: tests that start or kill processes, or train for many seconds.

`make test-system` runs them, `make test` all others.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=1500, help="fuzzed requests in tests/system/test_fuzz.py")
    parser.addoption("--kills", type=int, default=10, help="kills in tests/sandbox/test_box_kills.py")
    parser.addoption("--slime-source", help="checkout of slime 0.3.1 whose data classes tests/train/test_slime*.py run")
    parser.addoption("--need-sandbox", action="store_true", help="fail instead of skip if bubblewrap is missing")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "system: starts processes, or trains for long; run by `make test-system`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the system tests by their path."""
    here = Path(__file__).parent
    places = [here / place for place in SYSTEM_TESTS]
    for item in items:
        if any(item.path.is_relative_to(place) for place in places):
            item.add_marker(pytest.mark.system)


@pytest.fixture(autouse=True)
def propagating_log() -> Iterator[None]:
    """Undo `setup_logging` after a test: pytest captures a logger that does not propagate a second time."""
    yield
    logging.getLogger("openclaw_rl").propagate = True
