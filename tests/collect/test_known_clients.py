"""The prompts of known clients are recognised, and what a person writes is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.collect.world import Ask, Stored

from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.settings.load import CollectConfig
from openclaw_rl.types import Kind

CLASSIFIER = TrafficClassifier(())
SUMMARY = "Create a summary of the conversation above:"
PERSON = [
    "Create a summary of the report above.",
    "Summarize what we have so far and send it to Bob.",
    "Please continue.",
    "What did we do so far?",
    "Continue with the next chapter.",
    "Can you critically evaluate this plan?",
    "Analyze the tool result and tell me what is wrong.",
    "I ran this command:\nls -l\nand it failed",
    "I did `git reset --hard HEAD~1` to discard the last edits.",
    "New task:\nwrite a poem",
    "no, shorter",
    "thanks, perfect!",
    "You are a helpful assistant? Prove it.",
    "Generate a title for my novel.",
    "Fantastic. Now the second one.",
    "Your task is to win this game.",
    "<task>\nfix the bug\n</task>",
    "Based on the above, please provide an answer.",
    "Search for memories of my holiday.",
    "### Task:\nWrite the release notes.",
    "Please summarize this conversation.",
    "Hold on, before you continue: the date is wrong.",
]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("text", PERSON)
def test_what_a_person_writes_is_no_client_prompt(text: str) -> None:
    message = user(text)
    assert not CLASSIFIER.is_client_prompt(message)
    assert not CLASSIFIER.is_client_text(message)
    assert CLASSIFIER.side_pattern_match(message) is None


def test_the_title_prompt_of_chatbox_is_a_client_prompt() -> None:
    text = "Based on the chat history, give this conversation a name.\nKeep it short - 30 characters max."
    assert CLASSIFIER.is_client_prompt(user(text))
    assert CLASSIFIER.side_pattern_match(user(text)) is not None


@pytest.mark.parametrize("known", [True, False])
def test_the_setting_turns_the_catalogue_off(tmp_path: Path, known: bool) -> None:
    world = Stored(tmp_path / "store.db")
    world.collector = Collector(world.store, CollectConfig(known_clients=known))
    world.play(Ask(name="1", history=["u Where shall we eat?"], reply="There is a good Italian place by the river."))
    history = ["u Where shall we eat?", "a There is a good Italian place by the river.", f"u {SUMMARY}"]
    world.play(Ask(name="2", history=history, reply="Dinner."))
    seen = world.seen("2")
    assert (seen.kind, "1" in seen.answers) == ((Kind.SIDE, False) if known else (Kind.MAIN, True))
    world.store.close()


def test_each_prompt_names_its_source() -> None:
    found = yaml.safe_load((ASSETS / "client_prompts.yaml").read_text(encoding="utf-8"))
    entries = [entry for kind in found.values() for entry in kind]
    assert len(entries) > 100
    assert all(entry["client"] and entry["source"] and entry["patterns"] for entry in entries)
