"""A running system: a wish that makes the model answer off the question leaves the prompt, and is said."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import yaml
from tests.system.test_parked import wait_for
from tests.system.test_words import run

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import examinations
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

UNKNOWN_WORDS = "Отвечай по-клингонски: nuqneH, Duj, puchpa'! Ελληνικά, български, עברית, ไทย."
QUESTION = {"role": "user", "content": "What is the capital of France?"}
WISH = {"role": "user", "content": "In Klingon, please. What is the capital of Italy?"}
OTHER = {"role": "user", "content": "What is the opposite of hot?"}


def write_rules(folder: Path) -> Path:
    """The shipped rules, and one for a wish in words that the model has never seen."""
    folder.mkdir()
    english = yaml.safe_load((ASSETS / "rules" / "english.yaml").read_text(encoding="utf-8"))
    rule = {
        "name": "klingon",
        "when": "in klingon, please",
        "score": -1,
        "hint": UNKNOWN_WORDS,
        "topic": "language/x",
    }
    english["rules"].append(rule)
    (folder / "english.yaml").write_text(
        yaml.safe_dump(english, allow_unicode=True), encoding="utf-8"
    )
    return folder


def ask(system: SubprocessSystem, *messages: dict[str, str]) -> tuple[dict[str, str], str, str]:
    """Returns the reply, and the ids of the lessons in the prompt and of the withdrawn ones."""
    body = {"model": "openclaw", "messages": list(messages), "temperature": 0}
    headers = {"Authorization": f"Bearer {system.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{system.base_url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        names = response.headers
        reply = json.load(response)["choices"][0]["message"]
    return reply, names.get("X-OpenClaw-Lessons", ""), names.get("X-OpenClaw-Withdrawn-Lessons", "")


def is_examined(config: Config) -> bool:
    """Whether what the newest message said was examined."""
    with Store.open(config.store_path) as store, store.read() as conn:
        return examinations.count_results(conn) > 0


def test_a_wish_that_costs_correctness_leaves_the_prompt_within_one_turn(tmp_path: Path) -> None:
    rules = write_rules(tmp_path / "rules")
    config = scratch_config(tmp_path / "home", {"judge.rules_path": str(rules)})
    home = ("--home", str(config.home_dir))

    def listed() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(run("lessons", "list", *home, "--json").stdout)[
            "lessons"
        ]
        return found

    with SubprocessSystem(config) as system:
        reply, _, _ = ask(system, QUESTION)
        second, in_prompt, _ = ask(system, QUESTION, reply, WISH)
        assert in_prompt == "wish/language/x", "the newest words count for their reply"
        wait_for(lambda: bool(listed()))
        wait_for(lambda: is_examined(config))
        answer, in_prompt, withdrawn = ask(system, QUESTION, reply, WISH, second, OTHER)
        assert in_prompt == "", "not once after its own reply"
        (lesson,) = listed()
        assert withdrawn == lesson["id"]
        assert "cold" in str(answer["content"])
        wait_for(lambda: listed()[0]["state"] == "withdrawn")
        shown = " ".join(run("lessons", "list", *home).stdout.split())
        assert "withdrawn from prompts, not practised" in shown
        assert "withdrawn lesson" in run("status", *home).stdout
        assert "lessons cost correctness" in run("doctor", "--troubles", *home).stdout
        assert ask(system, OTHER)[1:] == ("", lesson["id"]), "it stays out"
