"""Options of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)  # `make explore`
settings.load_profile("repeatable")

WHOLE_SYSTEMS = ("system", "plugins/test_system.py", "plugins/test_rollouts.py")
"""Below this folder. Each of their tests starts several processes, so that two of them at once would be too many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=1500, help="fuzzed requests in tests/system/test_fuzz.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`make test`) one makes all tests of whole systems, while the other makes the rest."""
    here = Path(__file__).parent
    whole = [here / place for place in WHOLE_SYSTEMS]
    for item in items:
        if any(item.path.is_relative_to(place) for place in whole):
            item.add_marker(pytest.mark.xdist_group("whole systems"))
