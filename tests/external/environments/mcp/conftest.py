"""The Python that has the package `mcp`: `--mcp-python`. A gateway with a scripted engine: `start`."""

from __future__ import annotations

import pytest
from tests.serve.conftest import empty_store, renderers, start

__all__ = ["empty_store", "renderers", "start"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mcp-python", help="a Python with the package mcp")


@pytest.fixture(scope="session")
def mcp_python(request: pytest.FixtureRequest) -> str:
    found = request.config.getoption("--mcp-python")
    if not found:
        pytest.fail("set --mcp-python, or run `make test-mcp`")
    return str(found)
