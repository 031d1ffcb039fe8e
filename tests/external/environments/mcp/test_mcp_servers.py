"""MCP servers on the official SDK: tools, state by episode, errors, and what is left of a server that ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments.agents.chat_agent import AgentCall, open_agent_session
from openclaw_rl.environments.leftovers import find_processes
from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.sources.tools.mcp_bridge import McpBridge
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken
from openclaw_rl.environments.sources.tools.tool_config import ToolConfig
from openclaw_rl.environments.sources.tools.tool_session import ToolSession, ToolWorld
from openclaw_rl.environments.sources.tools.tool_task import parse_task
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits
from openclaw_rl.settings.schema_sandbox import SandboxConfig

SERVER = '''
import os, sys, time
try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("counter")
count = 0

@server.tool()
def add(by: int) -> str:
    """Add to the count."""
    global count
    count += by
    return f"count {count}, secret {os.environ.get('OPENCLAW_SECRET')}, in {os.getcwd()}"

@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such thing")

@server.tool()
def end() -> str:
    """End."""
    os._exit(3)

@server.tool()
def wait() -> str:
    """Wait."""
    time.sleep(60)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            server.run(transport="streamable-http", port=int(sys.argv[1]))
        except TypeError:  # mcp 1
            server.settings.port = int(sys.argv[1])
            server.run(transport="streamable-http")
    else:
        server.run()
'''
Play = Callable[[ToolSession], Awaitable[Any]]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return file


def play(python: str, entry: dict[str, Any], *episodes: Play) -> list[Any]:
    """Run episodes side by side; afterwards no process is left."""
    config = ToolConfig.model_validate({"mcp": [{"name": "counter", **entry}], "seconds": 2})
    data = {"prompt": "p", "check": {"kind": "pattern", "value": "."}}
    task = parse_task(EnvironmentTask(id="t", digest="0", split="train", data=data), config, Path())
    shared = new_scratch_folder("shared")
    Path(shared).mkdir()

    async def run_one(world: ToolWorld, number: int, episode: Play) -> Any:
        folder = new_scratch_folder(f"e{number}")
        await asyncio.to_thread(Path(folder).mkdir)
        session = ToolSession(world, task, f"e{number}", folder)
        try:
            await session.open_tools()
            return await episode(session)
        finally:
            await session.close()
            assert find_processes(folder) == []

    async def run_all() -> list[Any]:
        bridge = McpBridge(config.mcp, python, os.environ["PATH"])
        bridge.use_folder(shared)
        try:
            async with open_agent_session() as http:
                world = ToolWorld(
                    config=config, folder=Path(), sandbox=SandboxConfig(), http=http, bridge=bridge
                )
                return list(
                    await asyncio.gather(*(run_one(world, n, e) for n, e in enumerate(episodes)))
                )
        finally:
            await bridge.close()
            assert find_processes(shared) == []

    return asyncio.run(run_all())


async def call(session: ToolSession, name: str, **arguments: Any) -> tuple[str, bool]:
    made = await session.answer_call(AgentCall(id="c", name=name, arguments=json.dumps(arguments)))
    return made.result, made.is_error


def test_each_episode_has_a_server_of_its_own(
    mcp_python: str, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_SECRET", "sk-owner")

    async def count_twice(session: ToolSession) -> list[str]:
        assert [tool["function"]["name"] for tool in session.list_definitions()] == [
            "add",
            "fail",
            "end",
            "wait",
        ]
        return [(await call(session, "add", by=2))[0] for _ in range(2)]

    for first, second in play(
        mcp_python, {"command": [mcp_python, str(server)]}, count_twice, count_twice, count_twice
    ):
        assert first.startswith("count 2, secret None, in /")
        assert second.startswith("count 4, secret None")


def test_errors_of_a_tool_and_bad_arguments_are_answered(mcp_python: str, server: Path) -> None:
    async def make_mistakes(session: ToolSession) -> list[tuple[str, bool]]:
        return [
            await call(session, "fail"),
            await call(session, "add", by="x"),
            await call(session, "add", by=1),
        ]

    (found,) = play(mcp_python, {"command": [mcp_python, str(server)]}, make_mistakes)
    assert [is_error for _, is_error in found] == [True, True, False]
    assert "Error executing tool fail" in found[0][0]
    assert "by: 'x' is not of type 'integer'" in found[1][0]


@pytest.mark.parametrize(
    ("tool", "words"), [("end", "MCP server or tool end"), ("wait", "no result within 2 s")]
)
def test_a_server_that_ends_or_hangs_is_void(
    mcp_python: str, server: Path, tool: str, words: str
) -> None:
    async def break_it(session: ToolSession) -> None:
        with pytest.raises(ToolBroken, match=words):
            await call(session, tool)

    play(mcp_python, {"command": [mcp_python, str(server)]}, break_it)


def test_a_server_by_its_address(mcp_python: str, server: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [mcp_python, str(server), str(port)], stderr=subprocess.DEVNULL
    ) as process:
        try:
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)

            async def count(session: ToolSession) -> tuple[str, bool]:
                return await call(session, "add", by=7)

            ((text, is_error),) = play(mcp_python, {"url": f"http://127.0.0.1:{port}/mcp"}, count)
            assert (text[:7], is_error) == ("count 7", False)
        finally:
            process.kill()


def test_a_check_replays_calls_of_a_server(mcp_python: str, server: Path, tmp_path: Path) -> None:
    config, tasks = tmp_path / "tools.json", tmp_path / "tasks.jsonl"
    config.write_text(
        json.dumps(
            {"mcp": [{"name": "counter", "command": [mcp_python, str(server)], "tools": ["add"]}]}
        )
    )
    calls = [{"tool": "add", "arguments": {"by": 3}}]
    line = {"prompt": "p", "check": {"kind": "calls", "value": calls}, "calls": calls}
    tasks.write_text(json.dumps(line))
    request = SourceRequest(
        source="tools",
        argument=str(config),
        tasks=tasks,
        python=mcp_python,
        search_path=os.environ["PATH"],
    )
    source = find_source(request).make_source(request)
    (task,) = source.load_tasks()
    folder = new_scratch_folder("check")
    fitness = asyncio.run(source.check_task(task, folder, PlayLimits(seconds=60)))
    assert (fitness.fit, fitness.oracle, fitness.nop) == (True, 1.0, 0.0), fitness
    assert find_processes(folder) == []


def test_a_python_without_the_package_is_named(server: Path, mcp_python: str) -> None:
    async def never(session: ToolSession) -> None: ...

    with pytest.raises(ToolBroken, match="has no package mcp"):
        play("/usr/bin/python3", {"command": [mcp_python, str(server)]}, never)
