"""The real Open WebUI in an environment of its own: `make test-open-webui` installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--open-webui-env",
        default=str(ROOT / ".open-webui-venv"),
        help="environment with Open WebUI",
    )
