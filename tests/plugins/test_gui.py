"""The example at a web page, as far as it needs no browser. With one: `make test-gui`, gui_in_a_browser.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.errors import PluginError
from openclaw_rl.rollouts.function import RolloutFunction
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.settings.load import from_flat


@pytest.fixture(scope="module")
def entry(examples: Path) -> RolloutFunction:
    return RolloutFunction(
        from_flat(
            {"rollout.function_path": str(examples / "gui_rollout.py"), "rollout.max_turns": 7}
        )
    )


@pytest.fixture(scope="module")
def gui(entry: RolloutFunction) -> Any:
    return entry.plugin.module


def ran(entry: RolloutFunction, task: str, **more: Any) -> Any:
    """Nothing answers at the model's address: the rollouts here end before they ask it."""
    return asyncio.run(entry.run(PolicyClient(None, "", name="n", session="s", most=1), task, more))  # type: ignore[arg-type]


def test_it_is_found_by_its_name_and_given_its_steps(entry: RolloutFunction, gui: Any) -> None:
    assert (entry.name, gui.MAX_GUI_STEPS) == ("gui_rollout", 7)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('click button "Send"', {"do": "click", "role": "button", "name": "Send", "number": None}),
        (
            ' click link "a \\"b\\" 3" 2\n',
            {"do": "click", "role": "link", "name": 'a "b" 3', "number": 2},
        ),
        ("click checkbox", {"do": "click", "role": "checkbox", "name": None, "number": None}),
        (
            'type "Zoë into" into textbox "Name" 12',
            {"do": "type", "role": "textbox", "name": "Name", "number": 12, "text": "Zoë into"},
        ),
        (
            'type "" into textbox',
            {"do": "type", "role": "textbox", "name": None, "number": None, "text": ""},
        ),
        ("goto /next?a=1", {"do": "goto", "address": "/next?a=1"}),
        ("done", {"do": "done"}),
    ],
)
def test_actions(gui: Any, reply: str, expected: dict[str, Any]) -> None:
    assert gui.parse_gui_action(reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I am done",
        "done done",
        "click",
        "click Send",
        'click button "Send" now',
        'click button "Send" 0',
        'click button "Send"\ndone',
        'click Button "Send"',
        'type "x"',
        'type x into textbox "Name"',
        "goto",
        "goto a b",
        'click button "\\x"',
    ],
)
def test_an_invalid_action_is_reported_to_the_model(gui: Any, reply: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected (one action in one line|words in quotes as JSON)[\s\S]*got"
    ):
        gui.parse_gui_action(reply)


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("http://127.0.0.1:8000/x?y#z", True),
        ("https://shop.example/x", True),
        ("https://shop.example:443/x", True),
        ("about:blank", False),
        ("http://shop.example/x", False),
        ("http://127.0.0.1:8001/", False),
        ("http://localhost:8000/", False),
        ("http://127.0.0.1:8000@evil.example/", False),
        ("http://127.0.0.1:99999/", False),
        ("file:///etc/passwd", False),
        ("chrome://settings", False),
        ("data:text/html,x", False),
        ("javascript:1", False),
    ],
)
def test_where_the_browser_may_go(gui: Any, address: str, may: bool) -> None:
    assert gui.permitted(address, "http://127.0.0.1:8000/start", ["https://shop.example"]) is may


def test_a_file_permits_its_folder_and_no_more(gui: Any, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "out").symlink_to(tmp_path)
    start = (tmp_path / "site" / "a b.html").as_uri()
    for name, may in (
        ("c.css", True),
        ("in/d.html", True),
        ("../e", False),
        ("%2e%2e/e", False),
        ("out/e", False),
    ):
        assert gui.permitted(f"file://{tmp_path}/site/{name}", start, ()) is may, name


def test_a_task_names_its_page(gui: Any) -> None:
    assert gui.first_page("Look (at http://127.0.0.1:1/a).", None) == "http://127.0.0.1:1/a"
    assert gui.first_page("Look at http://127.0.0.1:1/a", "file:///b.html") == "file:///b.html"
    with pytest.raises(ValueError, match="expected an address with http"):
        gui.first_page("Look", "shop.example")


def test_a_task_without_a_page_is_reported(entry: RolloutFunction) -> None:
    with pytest.raises(
        PluginError,
        match=r"gui_rollout\.py:\d+: gui_rollout raised ValueError: the task names no page",
    ):
        ran(entry, "Sign up.")


def test_playwright_is_named_where_it_is_missing(
    entry: RolloutFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(
        PluginError, match=r"pip install 'openclaw-rl\[gui\]'`, then `playwright install chromium`"
    ):
        ran(entry, "Sign up.", start="http://127.0.0.1:1/")
