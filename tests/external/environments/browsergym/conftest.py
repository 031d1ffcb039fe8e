"""How much of MiniWoB is played: two tasks with two seeds, or, with `--all-miniwob`, fifteen with five."""

from __future__ import annotations

import pytest

FEW = ("click-test-2", "enter-text")
MANY = (
    *FEW,
    "choose-list",
    "click-button",
    "click-checkboxes",
    "click-dialog",
    "click-link",
    "click-option",
    "click-tab",
    "click-widget",
    "enter-password",
    "focus-text",
    "login-user",
    "read-table",
    "search-engine",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-miniwob",
        action="store_true",
        help="play fifteen tasks of MiniWoB with five seeds each",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "miniwob" in metafunc.fixturenames:
        many = metafunc.config.getoption("--all-miniwob")
        metafunc.parametrize(
            "miniwob", [(task, 5 if many else 2) for task in (MANY if many else FEW)]
        )
