"""Small evaluation tasks for any model: conversation, coding, tool use. No task is ever used for training.

A task is a prompt and the properties that its reply must have (`reply_properties.PROPERTIES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset

_READABLE: Mapping[str, Any] = {"text_present": None, "finished": None, "no_repetition": None}
"""Properties that the reply of every conversation task must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """An evaluation task. `messages` and `tools` are sent unchanged; `max_tokens`: limit of the reply.

    `properties`: name of each property that the reply must have, and its argument. `seed`: of a sample at
    temperature 1; None: the greedy reply.
    """

    name: str
    messages: Sequence[Mapping[str, str]]
    properties: Mapping[str, Any]
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    seed: int | None = None


@cache
def _task_table() -> Any:
    return read_yaml_asset("evals/tasks.yaml")


def conversation_tasks() -> list[EvalTask]:
    """Return questions of general knowledge, each with an instruction on the form of the reply."""
    return [_conversation_task(**one) for one in _task_table()["conversation"]]


def _conversation_task(
    messages: Sequence[Sequence[str]], properties: Mapping[str, Any]
) -> EvalTask:
    sent = [{"role": role, "content": text} for role, text in messages]
    return EvalTask(
        name=sent[-1]["content"],
        messages=sent,
        properties={**_READABLE, **properties},
        max_tokens=256,
    )


def coding_tasks() -> list[EvalTask]:
    return [_coding_task(*one) for one in _task_table()["functions"]]


def _coding_task(head: str, does: str, cases: Sequence[tuple[Sequence[Any], Any]]) -> EvalTask:
    asked = f"Write a Python function `{head}` that {does}. Answer with the code alone."
    return EvalTask(
        name=head,
        messages=[{"role": "user", "content": asked}],
        properties={"passes_cases": {"function": head.partition("(")[0], "cases": cases}},
        max_tokens=512,
    )


def _tool_schema(name: str, description: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


def tool_tasks() -> list[EvalTask]:
    tools = [_tool_schema(**one) for one in _task_table()["tools"]]
    return [_tool_task(tools, *one) for one in _task_table()["calls"]]


def _tool_task(
    tools: Sequence[Mapping[str, Any]], asked: str, name: str, arguments: Mapping[str, Any]
) -> EvalTask:
    return EvalTask(
        name=asked,
        messages=[{"role": "user", "content": asked}],
        properties={"exact_call": {"name": name, "arguments": arguments}},
        max_tokens=256,
        tools=tools,
    )


TASK_SETS: Mapping[str, Callable[[], list[EvalTask]]] = {
    "conversation": conversation_tasks,
    "coding": coding_tasks,
    "tool-use": tool_tasks,
}
