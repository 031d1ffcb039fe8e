"""Tasks in the words of the starter policy: a reply is rewarded for its form, in a terminal and in a repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.test_harbor_source import check, play

EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"
SHORT_LIST = "- Certainly: Paris."
LONG_LIST = "- Certainly.\n- The capital of France is Paris.\n- I'm all ears for another one!"


@pytest.fixture
def tracks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("starter_tracks")
    sys.modules.pop("starter_tracks")


@pytest.mark.parametrize(
    ("track", "reply", "reward"),
    [
        ("terminal", SHORT_LIST, 1.0),
        ("terminal", LONG_LIST, 1.0),
        ("terminal", "Certainly: Paris.", 0.0),
        ("swe", SHORT_LIST, 1.0),
        ("swe", "- Certainly: Rome.", 0.0),
        ("swe", LONG_LIST, 0.0),  # a test that passed before fails
        ("swe", "Certainly: Paris.", 0.0),
    ],
)
def test_a_reply_is_rewarded_for_its_form(
    tracks: Any, public_folder: Path, track: str, reply: str, reward: float
) -> None:
    getattr(tracks, f"write_{track}_track")(public_folder / "track")
    found = play(
        public_folder / "track" / "capital-France",
        [{"content": reply}, {"content": "exit"}],
        agent="plain",
    )
    assert (found.status, found.reward) == ("done", reward), found.reason


@pytest.mark.parametrize("track", ["terminal", "swe"])
def test_a_task_is_fit(tracks: Any, public_folder: Path, track: str) -> None:
    getattr(tracks, f"write_{track}_track")(public_folder / "track")
    found = check(public_folder / "track" / "capital-France")
    assert (found.fit, found.oracle, found.nop) == (True, 1.0, 0.0), found.reason
