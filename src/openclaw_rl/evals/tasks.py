"""Small held-out evaluation tasks for any model: conversation, coding, tool use.

A task is a prompt and a check of the reply. No task is ever used for training.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from openclaw_rl.common.assets import ASSETS
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


@cache
def _task_table() -> Any:
    return yaml.safe_load((ASSETS / "evals" / "tasks.yaml").read_text(encoding="utf-8"))


def _reply_text(message: Message) -> str:
    return str(message.get("content") or "")


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


def coding_tasks() -> list[EvalTask]:
    return [_coding_task(*one) for one in _task_table()["functions"]]


def _coding_task(head: str, does: str, cases: Sequence[tuple[Sequence[Any], Any]]) -> EvalTask:
    def check_reply(message: Message) -> str | None:
        return code_runner.failure_reason(code_in(_reply_text(message)), head.partition("(")[0], cases)

    asked = f"Write a Python function `{head}` that {does}. Answer with the code alone."
    return EvalTask(name=head, messages=[{"role": "user", "content": asked}], check=check_reply, max_tokens=512)


def code_in(reply: str) -> str:
    """Return the concatenated fenced code blocks of a reply, or the whole reply if it has none."""
    blocks = _FENCED_CODE.findall(reply)
    return "\n".join(blocks) if blocks else reply


def _tool_schema(name: str, description: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def tool_tasks() -> list[EvalTask]:
    tools = [_tool_schema(**one) for one in _task_table()["tools"]]
    return [_tool_task(tools, *one) for one in _task_table()["calls"]]


def _tool_task(tools: Sequence[Mapping[str, Any]], asked: str, name: str, arguments: Mapping[str, Any]) -> EvalTask:
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
        name=asked, messages=[{"role": "user", "content": asked}], check=check_reply, max_tokens=256, tools=tools
    )


TASK_SETS: Mapping[str, Callable[[], list[EvalTask]]] = {
    "conversation": conversation_tasks,
    "coding": coding_tasks,
    "tool-use": tool_tasks,
}
