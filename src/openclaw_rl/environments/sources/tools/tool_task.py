"""A task for tools: prompt, tools, files, checks of the result, and the calls that solve it."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw_rl.environments.sources.tools.answer_checks import Check, parse_checks
from openclaw_rl.environments.sources.tools.tool_config import (
    ToolConfig,
    ToolSpec,
    describe_error,
    parse_tool,
)
from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of the solution."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTask:
    """A task. `tools`: of this task, without those of MCP servers. `mcp`: names of its servers.

    `files`: name in the work folder -> text. `calls`, `answer`: the solution that `env check` replays. `only_calls`:
    the episode ends with the first reply, whose calls alone are checked. `step_reward`: for a reply all of whose calls
    are among `calls`; None: no step rewards.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[ToolSpec, ...]
    mcp: tuple[str, ...]
    files: Mapping[str, str]
    checks: tuple[Check, ...]
    calls: tuple[RecordedCall, ...]
    answer: str
    only_calls: bool
    step_reward: float | None


class _CallEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tool: str
    arguments: dict[str, Any] = {}


class _TaskEntry(BaseModel):
    model_config = ConfigDict(extra="ignore")
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    tools: list[str | dict[str, Any]] | None = None
    mcp: list[str] | None = None
    files: dict[str, Any] = {}
    check: dict[str, Any] | list[dict[str, Any]] | None = None
    calls: list[_CallEntry] = []
    answer: str | int | float | None = None
    only_calls: bool = False
    step_reward: float | None = Field(None, gt=0)


def parse_task(task: EnvironmentTask, config: ToolConfig, folder: Path) -> ToolTask:
    """Return the task of a line of the task file. `folder`: of that file. Raises `ConfigError`."""
    where = f"task {task.id}"
    try:
        entry = _TaskEntry.model_validate(dict(task.data))
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe_error(error)}") from None
    messages = _begin_messages(entry, config.system, where)
    if entry.check is None:
        raise ConfigError(f"{where}: no `check`: expected how the result is checked, e.g. "
                          '{"kind": "exact", "value": "Paris"}')  # fmt: skip
    checks = entry.check if isinstance(entry.check, list) else [entry.check]
    tools, servers = _choose_tools(entry, config, where)
    files = {_file_name(name, where): _file_text(value) for name, value in entry.files.items()}
    calls = tuple(RecordedCall(tool=call.tool, arguments=call.arguments) for call in entry.calls)
    parsed = ToolTask(
        id=task.id,
        messages=messages,
        tools=tools,
        mcp=servers,
        files=files,
        checks=parse_checks(checks, where, folder),
        calls=calls,
        answer="" if entry.answer is None else str(entry.answer),
        only_calls=entry.only_calls,
        step_reward=entry.step_reward,
    )
    _check_solution(parsed, where)
    return parsed


def _check_roles(messages: Sequence[Mapping[str, Any]], where: str) -> None:
    for number, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ConfigError(
                f"{where}: messages.{number}: expected a message with a role, such as user"
            )


def _begin_messages(
    entry: _TaskEntry, system: str | None, where: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the messages that the episode begins with: those of the task, after the system message."""
    if (entry.prompt is None) == (not entry.messages):
        raise ConfigError(f"{where}: expected either `prompt`, a text, or `messages`")
    _check_roles(entry.messages, where)
    messages: list[Mapping[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": system})
    if entry.prompt is not None:
        messages.append({"role": "user", "content": entry.prompt})
    messages += entry.messages
    return tuple(messages)


def _choose_tools(
    entry: _TaskEntry, config: ToolConfig, where: str
) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """Return the tools and the names of the MCP servers of a task. Without a choice: all of the configuration."""
    servers = tuple(server.name for server in config.mcp)
    if entry.tools is None and entry.mcp is None:
        return config.tools, servers
    tools = config.tools
    if entry.tools is not None:
        tools = _listed_tools(entry.tools, config, where)
    return tools, _known_servers(entry.mcp or [], servers, where)


def _listed_tools(
    entries: Sequence[str | dict[str, Any]], config: ToolConfig, where: str
) -> tuple[ToolSpec, ...]:
    """Return the tools that a task lists, by their names or with definitions of its own."""
    known = {tool.name: tool for tool in config.tools}
    tools = [_find_tool(entry, known, where) for entry in entries]
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        raise ConfigError(f"{where}: two tools have the same name. Remove one")
    _check_code_files(tools, known, where)
    return tuple(tools)


def _check_code_files(tools: Sequence[ToolSpec], known: Container[str], where: str) -> None:
    """Raise `ConfigError` for a tool of the task itself with code in a file: a task file names no others."""
    for tool in tools:
        if tool.python_file is not None and tool.name not in known:
            raise ConfigError(
                f"{where}: tool {tool.name}: python_file belongs into the configuration"
            )


def _find_tool(listed: Any, known: Mapping[str, ToolSpec], where: str) -> ToolSpec:
    """Return a tool that a task names, or defines itself."""
    if not isinstance(listed, str):
        return parse_tool(listed, where)
    if listed not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(f"{where}: unknown tool {listed!r}. The configuration has {names}")
    return known[listed]


def _known_servers(chosen: list[str], servers: tuple[str, ...], where: str) -> tuple[str, ...]:
    unknown = sorted(set(chosen) - set(servers))
    if unknown:
        raise ConfigError(
            f"{where}: unknown MCP server {unknown[0]!r}. The configuration has {servers or 'none'}"
        )
    return tuple(chosen)


def _check_called_tools(task: ToolTask, where: str) -> None:
    names = {tool.name for tool in task.tools}
    for call in task.calls:
        if call.tool not in names:
            listed = ", ".join(names) or "none"
            raise ConfigError(f"{where}: calls: unknown tool {call.tool!r}. The task has {listed}")


def _check_solution(task: ToolTask, where: str) -> None:
    if not task.mcp:
        _check_called_tools(task, where)
    if task.step_reward is not None and not task.calls:
        raise ConfigError(f"{where}: step_reward needs `calls`, the calls to compare with")
    if not task.tools and not task.mcp:
        raise ConfigError(f"{where}: no tools: give them in TOOLS_CONFIG or in the task")


def _file_name(name: str, where: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\n" in name:
        raise ConfigError(
            f"{where}: files: {name!r}: expected a path in the work folder, like data/db.json"
        )
    return str(path)


def _file_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
