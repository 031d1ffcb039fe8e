"""MCP servers, by way of a process under the Python that has the package `mcp` (`foreign/mcp_tools.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from openclaw_rl.common.http.proxy_rule import with_direct_hosts
from openclaw_rl.environments.command_source import resolve_command
from openclaw_rl.environments.foreign_process import ForeignError, ForeignProcess
from openclaw_rl.environments.leftovers import FOLDER_VARIABLE
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken, ToolMissing
from openclaw_rl.environments.sources.tools.tool_config import McpServer, ToolSpec, describe_error
from openclaw_rl.environments.sources.tools.tool_text import cut_middle

_OPEN_SECONDS = 60.0
# The process ends with these words, and with the command that installs it.
_NO_PACKAGE = " has no package mcp "
_PROGRAM = Path(__file__).parents[2] / "foreign" / "mcp_tools.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool of a server. `session`: of the connection through which it is called."""

    spec: ToolSpec
    session: str


class McpBridge:
    """Connections to MCP servers: one of each server for each episode. `python`: one with the package `mcp`."""

    def __init__(self, servers: Sequence[McpServer], python: str, search_path: str) -> None:
        """Raises `ConfigError` if a program does not exist."""
        self._servers = {server.name: server for server in servers}
        self._commands = {
            server.name: resolve_command(server.command, search_path)
            for server in servers
            if server.command
        }
        self._search_path = search_path
        self._process = ForeignProcess(
            resolve_command([python, str(_PROGRAM)], search_path), search_path, {}
        )

    def use_folder(self, folder: str) -> None:
        """Set the folder of the process. It must exist."""
        self._process.use_folder(folder)

    async def open_servers(
        self, names: Sequence[str], episode: str, folder: str
    ) -> list[ServerTool]:
        """Connect to servers for an episode and return their tools. `folder`: of the programs. Raises `ToolBroken`."""
        tools = []
        for name in names:
            server = self._servers[name]
            session = f"{episode}/{name}"
            ours = {"HOME": folder, "TMPDIR": folder, "PATH": self._search_path, "LANG": "C.UTF-8"}
            asked = {
                "session": session,
                "command": self._commands.get(name, ()),
                "url": server.url,
                "environment": with_direct_hosts(
                    {**ours, **server.environment, FOLDER_VARIABLE: folder}
                ),
                "folder": folder,
                "seconds": _OPEN_SECONDS,
            }
            answer = await self._send("open", asked, _OPEN_SECONDS, name)
            for tool in answer["tools"]:
                if server.tools is None or tool["name"] in server.tools:
                    tools.append(ServerTool(spec=_as_spec(tool, name), session=session))
        return tools

    async def call_tool(
        self, tool: ServerTool, arguments: Mapping[str, Any], seconds: float, characters: int
    ) -> CallMade:
        """Return what became of the call. Raises `ToolBroken`."""
        asked = {
            "session": tool.session,
            "tool": tool.spec.name,
            "arguments": dict(arguments),
            "seconds": seconds,
        }
        answer = await self._send("call", asked, seconds, tool.spec.name)
        return CallMade(
            tool=tool.spec.name,
            arguments=arguments,
            result=cut_middle(str(answer["text"]), characters),
            images=tuple(answer["images"]),
            is_error=bool(answer["is_error"]),
        )

    async def close_servers(self, names: Sequence[str], episode: str) -> None:
        """End the connections of an episode, and with them its programs."""
        for name in names:
            await self._send("close", {"session": f"{episode}/{name}"}, _OPEN_SECONDS, name)

    async def close(self) -> None:
        """End the process and all programs."""
        await self._process.close()

    async def _send(
        self, kind: str, body: Mapping[str, Any], seconds: float, name: str
    ) -> dict[str, Any]:
        try:
            return await self._process.send_request(kind, body, seconds)
        except ForeignError as error:
            raised = ToolMissing if _NO_PACKAGE in str(error) else ToolBroken
            raise raised(f"MCP server or tool {name}: {error}") from None


def _as_spec(tool: Mapping[str, Any], server: str) -> ToolSpec:
    schema = tool["inputSchema"] or {"type": "object", "properties": {}}
    described = {
        "name": tool["name"],
        "description": tool["description"] or "",
        "parameters": schema,
        "result": None,
    }
    try:
        return ToolSpec.model_validate(described)
    except ValidationError as error:
        raise ToolBroken(
            f"MCP server {server}: {json.dumps(tool['name'])}: {describe_error(error)}"
        ) from None
