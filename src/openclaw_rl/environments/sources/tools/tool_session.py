"""The tools of one episode: what the model is offered, and how its calls are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from openclaw_rl.environments.agents.chat_agent import AgentCall
from openclaw_rl.environments.sources.tools.answer_checks import (
    BfclCheck,
    CallsCheck,
    DatabaseCheck,
    FileCheck,
    PythonCheck,
)
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.http_tools import call_service
from openclaw_rl.environments.sources.tools.mcp_bridge import McpBridge, ServerTool
from openclaw_rl.environments.sources.tools.schema_check import SchemaBroken, find_problem
from openclaw_rl.environments.sources.tools.state_checks import StateVerifier
from openclaw_rl.environments.sources.tools.tool_box import BoxTools, ToolBox, ToolBroken
from openclaw_rl.environments.sources.tools.tool_config import ToolConfig, ToolSpec, read_code
from openclaw_rl.environments.sources.tools.tool_task import ToolTask
from openclaw_rl.environments.sources.tools.tool_text import cut_middle
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_StateCheck = FileCheck | DatabaseCheck | PythonCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWorld:
    """Configuration and connections that all episodes share. `folder`: of the configuration."""

    config: ToolConfig
    folder: Path
    sandbox: SandboxConfig
    http: aiohttp.ClientSession
    bridge: McpBridge | None


class ToolSession:
    """Tools of an episode, between `open_tools` and `close`. Calls are answered one after the other.

    The code of the owner and the code of the model (`interpreter`) have boxes of their own: what the model runs can
    neither read nor change the tools and their state.
    """

    def __init__(self, world: ToolWorld, task: ToolTask, episode: str, folder: str) -> None:
        """`folder`: an existing folder of the episode."""
        self._world = world
        self._task = task
        self._episode = episode
        self._folder = folder
        self._specs = {tool.name: tool for tool in task.tools}
        self._server_tools: dict[str, ServerTool] = {}
        self.calls: list[CallMade] = []
        code = _collect_code(task.tools, world.folder)
        self._owner_box = ToolBox(world.sandbox, code, task.files)
        self._model_box = ToolBox(world.sandbox, BoxTools(has_interpreter=True), task.files)
        self._has_owner_code = bool(code.functions)
        self._has_interpreter = any(tool.kind == "interpreter" for tool in task.tools)

    async def open_tools(self) -> None:
        """Connect to the MCP servers of the task, and begin to open its boxes. Raises `ToolBroken`."""
        if self._has_owner_code:
            self._owner_box.open_early()
        if self._has_interpreter:
            self._model_box.open_early()
        if self._task.mcp:
            await self._open_servers()

    async def _open_servers(self) -> None:
        assert self._world.bridge is not None
        tools = await self._world.bridge.open_servers(self._task.mcp, self._episode, self._folder)
        for tool in tools:
            if tool.spec.name in self._all_specs():
                raise ToolBroken(
                    f"two tools have the name {tool.spec.name}: name the tools of the MCP server to use"
                )
            self._server_tools[tool.spec.name] = tool

    async def check_code(self) -> None:
        """Raise `ToolBroken` if the owner's code does not load, which an episode without a call would not notice."""
        if self._has_owner_code:
            await self._owner_box.check_code(self._world.config.seconds)

    def list_definitions(self) -> list[dict[str, Any]]:
        """Return the tools as a chat request has them."""
        return [spec.as_definition() for spec in self._all_specs().values()]

    async def answer_call(self, call: AgentCall) -> CallMade:
        """Return what became of a call. Bad arguments are an error that the model is shown. Raises `ToolBroken`."""
        answered = await self._answer(call)
        self.calls.append(answered)
        return answered

    async def score_checks(self, answer: str) -> dict[str, float]:
        """Return the result of each check of the task. Raises `ToolBroken` and `SandboxError`."""
        used = await self._box_with_state()
        verifier = StateVerifier(self._world.sandbox, used, Path(self._folder) / "work.tar")
        scores: dict[str, float] = {}
        try:
            for check in self._task.checks:
                name = check.name or check.kind
                while name in scores:
                    name += "+"
                if isinstance(check, CallsCheck | BfclCheck):
                    scores[name] = check.score_calls(self.calls)
                elif isinstance(check, _StateCheck):
                    scores[name] = await verifier.score_state(check, answer, self.calls)
                else:
                    scores[name] = check.score_answer(answer)
        finally:
            await verifier.close()
        return scores

    async def close(self) -> None:
        """End the boxes and the connections."""
        try:
            await self._owner_box.close()
        finally:
            try:
                await self._model_box.close()
            finally:
                if self._task.mcp and self._world.bridge is not None:
                    await self._world.bridge.close_servers(self._task.mcp, self._episode)

    async def _box_with_state(self) -> Any:
        """Return the box whose work folder is checked, if any check needs one."""
        if not any(isinstance(check, _StateCheck) for check in self._task.checks):
            return None
        if self._has_owner_code:
            return await self._owner_box.open_box()
        if self._has_interpreter or self._task.files:
            return await self._model_box.open_box()
        return None

    def _all_specs(self) -> dict[str, ToolSpec]:
        return self._specs | {name: tool.spec for name, tool in self._server_tools.items()}

    async def _answer(self, call: AgentCall) -> CallMade:
        spec = self._all_specs().get(call.name)
        if spec is None:
            known = ", ".join(self._all_specs())
            text = f"error: no tool {call.name[:64]}. Known are {known}"
            return CallMade(tool=call.name, arguments=None, result=text, is_error=True)
        try:
            arguments = _parse_arguments(call.arguments)
        except ValueError as error:
            return CallMade(tool=call.name, arguments=None, result=f"error: {error}", is_error=True)
        problem = await _schema_problem(spec, arguments)
        if problem:
            return CallMade(
                tool=call.name, arguments=arguments, result=f"error: {problem}", is_error=True
            )
        if call.name in self._server_tools:
            return await self._call_server(self._server_tools[call.name], arguments)
        text, is_error = await self._run_tool(spec, arguments)
        return CallMade(tool=call.name, arguments=arguments, result=text, is_error=is_error)

    async def _call_server(self, tool: ServerTool, arguments: dict[str, Any]) -> CallMade:
        assert self._world.bridge is not None
        seconds = tool.spec.seconds or self._world.config.seconds
        characters = self._world.config.characters
        return await self._world.bridge.call_tool(tool, arguments, seconds, characters)

    async def _run_tool(self, spec: ToolSpec, arguments: dict[str, Any]) -> tuple[str, bool]:
        seconds = spec.seconds or self._world.config.seconds
        characters = self._world.config.characters
        if spec.kind == "python":
            return await self._owner_box.call_tool(spec.name, arguments, seconds, characters)
        if spec.kind == "interpreter":
            return await self._model_box.call_tool(spec.name, arguments, seconds, characters)
        if spec.http is not None:
            return await call_service(
                self._world.http,
                spec.http,
                arguments,
                episode=self._episode,
                seconds=seconds,
                characters=characters,
            )
        text = spec.result if isinstance(spec.result, str) else json.dumps(spec.result)
        return cut_middle(text, characters), False


def _collect_code(tools: Sequence[ToolSpec], folder: Path) -> BoxTools:
    """Return the code of the tools: each file is one module, each text as well."""
    modules: list[str] = []
    functions: dict[str, tuple[int, str]] = {}
    for tool in tools:
        if tool.kind != "python":
            continue
        code = read_code(tool, folder)
        if code not in modules:
            modules.append(code)
        function = tool.function or tool.name
        functions[tool.name] = (modules.index(code), function)
    return BoxTools(modules=modules, functions=functions)


def _parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call. Raises `ValueError` with the words for the model."""
    try:
        arguments = json.loads(text or "{}")
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the arguments have half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("expected the arguments as a JSON object")
    return arguments


async def _schema_problem(spec: ToolSpec, arguments: dict[str, Any]) -> str | None:
    """Return why arguments are against the schema, or None. Raises `ToolBroken` if the schema cannot be used."""
    try:
        return await asyncio.to_thread(find_problem, spec.parameters, arguments)
    except SchemaBroken as error:
        raise ToolBroken(f"tool {spec.name}: parameters: {error}") from None
