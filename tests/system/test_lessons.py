"""One word to a running system is in the next prompts, and nowhere in what the client sees of the conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.test_parked import wait_for
from tests.system.test_words import run

from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = pytest.mark.system

QUESTION = {"role": "user", "content": "What is the capital of France?"}


def test_one_word_shapes_the_next_prompts_until_it_is_undone(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", {})
    home = ("--home", str(config.home_dir))

    def found() -> list[dict[str, object]]:
        listed: list[dict[str, object]] = json.loads(
            run("lessons", "list", *home, "--json").stdout
        )["lessons"]
        return listed

    with SubprocessSystem(config) as system:

        def ask(*messages: dict[str, str], **more: str) -> tuple[str, dict[str, str], list[str]]:
            body = {"model": "openclaw", "messages": list(messages), "temperature": 0, **more}
            made = post_json(system, "/v1/chat/completions", body)
            data = json.loads(run("inspect", "turn", made["id"], *home, "--json").stdout)
            return made["id"], made["choices"][0]["message"], list(data["lessons"].values())

        first, answer, lessons = ask(QUESTION)
        assert lessons == []
        ask(QUESTION, answer, {"role": "user", "content": "Shorter, please."})
        wait_for(lambda: bool(found()))
        other = {"role": "user", "content": "What is the capital of Italy?"}
        second, answer, lessons = ask(other)
        assert lessons == ["Keep answers short."]
        assert ask(QUESTION, model="openclaw@0")[2] == [], (
            "a request for one version measures the weights alone"
        )
        wish = {
            "role": "user",
            "content": "What is the capital of Spain? This time in detail, please.",
        }
        _, said, lessons = ask(other, answer, wish)
        assert lessons == [], "the newest words count for their reply"
        assert ask(other, answer, wish, said, QUESTION)[2] == ["Keep answers short."]
        assert [one["text"] for one in found()] == ["Keep answers short."], "they are no lesson"
        ask(
            {"role": "user", "content": "What is the capital of Italy?"},
            answer,
            {"role": "user", "content": "Thanks!"},
        )
        wait_for(
            lambda: (
                json.loads(run("inspect", "turn", second, *home, "--json").stdout)["state"]
                == "judged"
            )
        )
        undone = run("undo", *home, "--turn", first, "--yes")
        assert undone.returncode == 0, undone.stderr
        assert found() == []
        assert ask(QUESTION)[2] == []

        _, answer, _ = ask(QUESTION, user="ann")
        ask(QUESTION, answer, {"role": "user", "content": "Shorter, please."}, user="ann")
        wait_for(lambda: bool(found()))
        assert ask(other, user="ann")[2] == ["Keep answers short."]
        assert ask(other, user="bob")[2] == [], "another user behind the same key"
        assert "for user ann" in run("lessons", "list", *home).stdout
