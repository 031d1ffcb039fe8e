"""Small held-out evaluation tasks for any model: conversation, coding, tool use.

A task is a prompt and a check of the reply. No task is ever used for training.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.evals import code_runner
from openclaw_rl.evals.phrases import INSTRUCTIONS
from openclaw_rl.evals.styles import TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import Question, held_out_questions, is_correct

CONVERSATION_COUNT = 20
_SEED = 20_260_000
_FENCED_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

Message = Mapping[str, Any]
ReplyCheck = Callable[[Message], str | None]
"""Assistant message -> None if it is correct, else the reason why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """An evaluation task. `messages` and `tools` are sent unchanged; `max_tokens`: limit of the reply."""

    name: str
    messages: Sequence[Mapping[str, str]]
    check: ReplyCheck
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def _reply_text(message: Message) -> str:
    return str(message.get("content") or "")


# -------------------------------------------------------------------------------------------------------- conversation


def conversation_tasks() -> list[EvalTask]:
    """Return held-out questions about the toy world, each with a style in the system message."""
    questions = held_out_questions(CONVERSATION_COUNT, random.Random(_SEED))
    return [_conversation_task(q, TASTES[place % len(TASTES)]) for place, q in enumerate(questions)]


def _conversation_task(question: Question, taste: Taste) -> EvalTask:
    def check_reply(message: Message) -> str | None:
        words = _reply_text(message)
        if not is_correct(question, words):
            return f"not right: expected {question.fact.answer}"
        return None if has_style(taste, words) else f"right, but not {taste}"

    said = [{"role": "system", "content": INSTRUCTIONS[taste][0]}, {"role": "user", "content": question.text}]
    return EvalTask(name=f"{taste}: {question.text}", messages=said, check=check_reply, max_tokens=256)


# -------------------------------------------------------------------------------------------------------------- coding

_FUNCTIONS: Sequence[tuple[str, str, Sequence[tuple[Sequence[Any], Any]]]] = (
    ("add(a, b)", "returns the sum of two numbers", (((1, 2), 3), ((-5, 5), 0), ((0.5, 1), 1.5))),
    ("is_even(n)", "returns whether the integer n is even", (((0,), True), ((7,), False), ((-4,), True))),
    ("reverse(text)", "returns a string backwards", ((("abc",), "cba"), (("",), ""), (("ab ",), " ba"))),
    ("largest(numbers)", "returns the largest of a non-empty list", ((([3, 9, 2],), 9), (([-3, -8],), -3))),
    ("count_vowels(text)", "counts a, e, i, o, u in either case", ((("Hello",), 2), (("AEIOU xyz",), 5), (("",), 0))),
    ("factorial(n)", "returns n! for n >= 0", (((0,), 1), ((5,), 120), ((10,), 3628800))),
    ("unique(items)", "returns the items without repeats, in the order in which they first stand",
     ((([3, 1, 3, 2, 1],), [3, 1, 2]), (([],), []))),
    ("is_palindrome(text)", "returns whether text reads the same backwards, letter case and spaces aside",
     ((("Never odd or even",), True), (("abc",), False), (("",), True))),
)  # fmt: skip


def coding_tasks() -> list[EvalTask]:
    return [_coding_task(*one) for one in _FUNCTIONS]


def _coding_task(head: str, does: str, cases: Sequence[tuple[Sequence[Any], Any]]) -> EvalTask:
    def check_reply(message: Message) -> str | None:
        return code_runner.failure_reason(code_in(_reply_text(message)), head.partition("(")[0], cases)

    asked = f"Write a Python function `{head}` that {does}. Answer with the code alone."
    return EvalTask(name=head, messages=[{"role": "user", "content": asked}], check=check_reply, max_tokens=512)


def code_in(reply: str) -> str:
    """Return the concatenated fenced code blocks of a reply, or the whole reply if it has none."""
    blocks = _FENCED_CODE.findall(reply)
    return "\n".join(blocks) if blocks else reply


# ------------------------------------------------------------------------------------------------------------ tool use


def _tool_schema(name: str, does: str, **parameters: str) -> Mapping[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": does, "parameters": schema}}


_TOOLS = (
    _tool_schema("get_weather", "The weather in a city now.", city="string"),
    _tool_schema("add", "The sum of two numbers.", a="number", b="number"),
    _tool_schema("read_file", "The text of a file.", path="string"),
    _tool_schema("send_mail", "Send a message to an address.", to="string", text="string"),
)
_CALLS: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("What is the weather in Paris now?", "get_weather", {"city": "Paris"}),
    ("Do I need an umbrella in Oslo? Look at the weather there.", "get_weather", {"city": "Oslo"}),
    ("Use the tool to add 417 and 58.", "add", {"a": 417, "b": 58}),
    ("What is 2.5 plus 4.25? Use the tool.", "add", {"a": 2.5, "b": 4.25}),
    ("What does the file notes.txt say?", "read_file", {"path": "notes.txt"}),
    ("Send ann@example.org the words: see you", "send_mail", {"to": "ann@example.org", "text": "see you"}),
)


def tool_tasks() -> list[EvalTask]:
    return [_tool_task(*one) for one in _CALLS]


def _tool_task(asked: str, name: str, arguments: Mapping[str, Any]) -> EvalTask:
    def check_reply(message: Message) -> str | None:
        made = message.get("tool_calls") or []
        if len(made) != 1:
            return f"expected one call of {name}, got {len(made)} calls"
        function = made[0]["function"]
        try:
            given = json.loads(function["arguments"])
        except ValueError:
            return f"the arguments are not valid JSON: {function['arguments'][:200]!r}"
        if (function["name"], given) != (name, arguments):
            return f"expected {name}({dict(arguments)}), got {function['name']}({given})"
        return None

    return EvalTask(
        name=asked, messages=[{"role": "user", "content": asked}], check=check_reply, max_tokens=256, tools=_TOOLS
    )


TASK_SETS: Mapping[str, Callable[[], list[EvalTask]]] = {
    "conversation": conversation_tasks,
    "coding": coding_tasks,
    "tool-use": tool_tasks,
}
