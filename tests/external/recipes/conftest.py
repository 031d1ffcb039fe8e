"""Option of the tests of recipes."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines-table", help="file for the table of the described lines")
