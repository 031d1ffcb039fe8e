"""Text that client programs add to a person's message is set apart; the person's own words stay."""

from __future__ import annotations

import pytest

from openclaw_rl.common.client_context import strip_added_text
from openclaw_rl.common.message_hash import own_hash, visible_text

DETAILS = "<environment_details>\n# Current Time\n9:00\n</environment_details>"
RAG = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline citations in the format "
    "[source_id].\n\n<context>\nA page with </context> in it.\n</context>\n\n"
)
ADDED = {
    "a reminder before the words": "<system-reminder>\nBe kind.\n</system-reminder>\nNo, shorter.",
    "a reminder behind the words": "No, shorter.\n\n<system-reminder>Be kind.</system-reminder>",
    "environment details": f"No, shorter.\n{DETAILS}",
    "two blocks around the words": f"{DETAILS}\nNo, shorter.\n<system-reminder>x</system-reminder>\n",
    "an editor's context": (
        "<context>\nThe current date is May 4.\n</context>\n<editorContext>\nThe user's current file is a.py.\n"
        "</editorContext>\n<reminderInstructions>\n</reminderInstructions>\n<userRequest>\nNo, shorter.\n</userRequest>"
    ),
    "retrieved documents": f"{RAG}No, shorter.",
    "retrieved documents, with the words in tags": f"{RAG}<user_query>\nNo, shorter.\n</user_query>\n",
}
OWN = [
    "No, shorter.",
    "What does <system-reminder> mean?",
    "Why is </environment_details> before <environment_details> here?",
    "<context>\nMy essay\n</context>",
    "### Task:\nWrite the release notes. <context>none</context>",
    "Is 1 < 2?",
]


@pytest.mark.parametrize("case", ADDED)
def test_added_text_is_set_apart(case: str) -> None:
    message = {"role": "user", "content": ADDED[case]}
    assert visible_text(message) == "No, shorter."
    assert own_hash(message, b"key") == own_hash(
        {"role": "user", "content": "No, shorter."}, b"key"
    )


@pytest.mark.parametrize("text", OWN)
def test_text_of_a_person_stays(text: str) -> None:
    assert strip_added_text(text) == text


def test_text_that_a_person_typed_during_a_run_stays() -> None:
    typed = "<system-reminder>\nThe user sent a new message while you were working: stop\n</system-reminder>"
    assert strip_added_text(f"{DETAILS}\n{typed}") == typed
    assert strip_added_text(f"Hm.\n{typed}\n{DETAILS}") == f"Hm.\n{typed}"


def test_parts_between_blocks_are_lines() -> None:
    assert strip_added_text(f"First.\n\n{DETAILS}\n\nSecond.") == "First.\nSecond."


def test_only_the_message_of_a_person_is_read() -> None:
    result = {"role": "tool", "content": DETAILS}
    assert visible_text(result) == DETAILS


def test_many_openings_without_an_end_are_read_once() -> None:
    """Quadratic code would not end."""
    text = "<environment_details>" * 200_000
    assert strip_added_text(text) == text


def test_blank_lines_and_ends_of_lines_of_a_reply_make_no_difference() -> None:
    said = {"role": "assistant", "content": "Two places:\n- One\n    - indented"}
    shown = {"role": "assistant", "content": "Two places:  \n\n- One\n\n\n    - indented"}
    moved = {"role": "assistant", "content": "Two places:\n- One\n- indented"}
    assert own_hash(said, b"key") == own_hash(shown, b"key")
    assert own_hash(said, b"key") != own_hash(moved, b"key")
    asked = [{**one, "role": "user"} for one in (said, shown)]
    assert own_hash(asked[0], b"key") != own_hash(asked[1], b"key")
