"""The steps by which a conversation is shown that a template refuses: only those that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from openclaw_rl.errors import TemplateRefusal
from openclaw_rl.render.degradation import (
    STEPS,
    Degradation,
    apply_steps,
    read_arguments,
    render_degraded,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "cut"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "s1"},
    {"role": "system", "content": "s2"},
    {"role": "assistant", "content": "a1", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c2", "content": "r2"},
    {"role": "tool", "tool_call_id": "c9", "content": "r9"},
    {"role": "user", "content": "u1"},
    {"role": "user", "content": "u2"},
]
Rule = Callable[[Sequence[dict[str, Any]]], bool]


def has_pairs(messages: Sequence[dict[str, Any]]) -> bool:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return all(isinstance(call["function"]["arguments"], dict) for call in calls)


def alternates(messages: Sequence[dict[str, Any]]) -> bool:
    roles = [message["role"] for message in messages]
    return all(role != after for role, after in pairwise(roles))


def is_plain(messages: Sequence[dict[str, Any]]) -> bool:
    """What every template takes."""
    roles = [message["role"] for message in messages]
    begins = roles[0] == "user" and set(roles) <= {"user", "assistant"}
    return begins and alternates(messages) and not any("tool_calls" in m for m in messages)


def has_one_system(messages: Sequence[dict[str, Any]]) -> bool:
    return all(message["role"] != "system" for message in messages[1:])


def has_single_calls(messages: Sequence[dict[str, Any]]) -> bool:
    return all(len(message.get("tool_calls", ())) < 2 for message in messages)


def render_by(rule: Rule) -> Callable[[Sequence[dict[str, Any]]], str]:
    def render(messages: Sequence[dict[str, Any]]) -> str:
        if not rule(messages):
            raise TemplateRefusal(f"refused with {len(messages)} messages")
        return str([(m["role"], m["content"]) for m in messages])

    return render


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (lambda messages: True, ()),
        (has_pairs, (Degradation.CALL_ARGUMENTS,)),
        (has_one_system, (Degradation.SYSTEM_MESSAGES,)),
        (has_single_calls, (Degradation.SINGLE_CALLS,)),
        (is_plain, None),
    ],
)
def test_only_the_steps_that_are_needed_are_taken(
    rule: Rule, steps: tuple[Degradation, ...] | None
) -> None:
    shown = render_degraded(render_by(rule), HISTORY)
    assert steps is None or shown.steps == steps
    assert shown.text == render_by(rule)(apply_steps(HISTORY, shown.steps))
    for step in shown.steps:
        fewer = [one for one in shown.steps if one is not step]
        with pytest.raises(TemplateRefusal):
            render_by(rule)(apply_steps(HISTORY, fewer))


def test_all_words_are_in_the_plainest_form() -> None:
    text = render_degraded(render_by(is_plain), HISTORY).text
    assert [m["content"] for m in HISTORY if m["content"] not in text] == []
    assert "cut" in text


def test_a_template_that_refuses_everything_says_why_it_refused_what_was_sent() -> None:
    with pytest.raises(TemplateRefusal, match="refused with 7 messages"):
        render_degraded(render_by(lambda messages: False), HISTORY)


def test_every_step_is_stable() -> None:
    for step, change in STEPS.items():
        once = change(HISTORY)
        assert change(once) == once, step


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("", {}),
        (" null ", {}),
        (None, {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": NaN}', {"a": "NaN"}),
        ('{"a": "x\\ud83d"}', {"a": "x\ufffd"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "\\\\ud83d"}', {"a": "\\ud83d"}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"a": 1}{"b": 2}', {"arguments": '{"a": 1}{"b": 2}'}),
        ([1], {"arguments": "[1]"}),
        ("ls -la", {"arguments": "ls -la"}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_become_pairs(value: Any, arguments: dict[str, Any]) -> None:
    assert read_arguments(value) == arguments
