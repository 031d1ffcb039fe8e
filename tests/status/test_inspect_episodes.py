"""`inspect episode` and `inspect group`: turn by turn, as JSON and in a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.serve.conftest import Site, Start, empty_store, renderers, site, start
from tests.serve.episodes.conftest import Open, collect, judge, open_episode

from openclaw_rl.cli.main import cli

__all__ = ["empty_store", "open_episode", "renderers", "site", "start"]


def show(home: Path, *args: str) -> str:
    result = CliRunner().invoke(cli, ["inspect", *args, "--home", str(home)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def played(site: Site, open_episode: Open) -> dict[str, list[str]]:
    turns: dict[str, list[str]] = {}
    for name, reward in (("good", 1.0), ("bad", 0.0), ("broken", None)):
        run = open_episode(name, size=3)
        turns[name] = [
            run.step("list the files", f"a reply of {name}"),
            run.step("three files", f"the end of {name}"),
        ]
        run.end(
            reward,
            **({"parts": {"tests": 1.0}} if name == "good" else {"reason": f"{name} it was"}),
        )
    collect(site.store)
    judge(site.store, lambda item: 1 if item.turn == turns["good"][0] else -1)
    return turns


def test_an_episode_is_shown_turn_by_turn(site: Site, played: dict[str, list[str]]) -> None:
    data: dict[str, Any] = json.loads(show(site.config.home_dir, "episode", "good", "--json"))
    assert (data["status"], data["reward"], data["parts"], data["group"]) == (
        "done",
        1.0,
        {"tests": 1.0},
        "g",
    )
    first, last = data["turns"]
    assert [first["turn"], last["turn"]] == played["good"]
    assert (first["step"], first["step_reward"], first["advantage"]) == (0, 1.0, 0.5 + 1.0)
    assert (last["step"], last["step_reward"], last["advantage"]) == (1, None, 0.5)
    assert first["reaction"]["messages"] == [{"role": "user", "content": "three files"}]
    text = show(site.config.home_dir, "episode", "good")
    for words in (
        "step 0",
        "a reply of good",
        "three files",
        "+1 by scripted",
        "advantage +1.5",
        "tests 1",
    ):
        assert words in text


def test_a_group_is_shown_with_its_void_members(site: Site, played: dict[str, list[str]]) -> None:
    data = json.loads(show(site.config.home_dir, "group", "g", "--json"))
    assert (data["mean_reward"], data["size"], data["reason"]) == (0.5, 3, None)
    assert {e["episode"]: [t["advantage"] for t in e["turns"]] for e in data["episodes"]} == {
        "good": [1.5, 0.5],
        "bad": [-1.5, -0.5],
        "broken": [None, None],
    }
    text = show(site.config.home_dir, "group", "g")
    assert "its episode is void: broken it was" in " ".join(text.replace("│", " ").split())
    assert "complete, mean reward 0.5" in text


@pytest.mark.parametrize("kind", ["episode", "group"])
def test_an_unknown_name_is_an_error(start: Start, kind: str) -> None:
    home = start().config.home_dir
    result = CliRunner().invoke(cli, ["inspect", kind, "nothing", "--home", str(home)])
    assert f"no {kind} 'nothing'" in str(result.exception)
