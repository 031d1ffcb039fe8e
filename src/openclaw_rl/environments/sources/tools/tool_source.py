"""The source `tools`: tasks for an agent that calls tools, and the runner that plays them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from openclaw_rl.environments.agents.chat_agent import AgentCall, ChatAgent, open_agent_session
from openclaw_rl.environments.sources.tools.answer_checks import PythonCheck
from openclaw_rl.environments.sources.tools.mcp_bridge import McpBridge
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken, ToolMissing
from openclaw_rl.environments.sources.tools.tool_config import (
    ToolConfig,
    config_digest,
    place_server,
)
from openclaw_rl.environments.sources.tools.tool_episode import (
    CallFormat,
    ChatFormat,
    TextFormat,
    ToolEpisode,
    score_outcome,
)
from openclaw_rl.environments.sources.tools.tool_images import ToolImages
from openclaw_rl.environments.sources.tools.tool_session import ToolSession, ToolWorld
from openclaw_rl.environments.sources.tools.tool_task import ToolTask, parse_task
from openclaw_rl.environments.task_file import read_task_file
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    TaskFitness,
    void_outcome,
)
from openclaw_rl.errors import BoxLost, OpenClawError, SandboxError
from openclaw_rl.sandbox.box_kinds import find_machine_problem
from openclaw_rl.settings.schema_sandbox import SandboxConfig

AGENTS = ("chat", "text")
# For the MCP servers of an episode.
_OPEN_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSetup:
    """Arguments of source and runner. `folder`: of the configuration. `python`: one with the package `mcp`."""

    config: ToolConfig
    folder: Path
    tasks: Path
    python: str
    search_path: str
    held_out_share: float = 0.0
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)

    def parse_task(self, task: EnvironmentTask) -> ToolTask:
        """Raises `ConfigError`."""
        return parse_task(task, self.config, self.tasks.parent)

    def make_bridge(self) -> McpBridge | None:
        """Return the way to the MCP servers, if there are any. Raises `ConfigError`."""
        servers = [place_server(server, self.folder) for server in self.config.mcp]
        return McpBridge(servers, self.python, self.search_path) if servers else None

    def make_world(self, http: aiohttp.ClientSession, bridge: McpBridge | None) -> ToolWorld:
        return ToolWorld(
            config=self.config, folder=self.folder, sandbox=self.sandbox, http=http, bridge=bridge
        )


class ToolSource:
    """Tasks from a file of JSON lines. The oracle is the task's recorded calls and answer."""

    name = "tools"

    def __init__(self, setup: ToolSetup) -> None:
        self._setup = setup

    def load_tasks(self) -> list[EnvironmentTask]:
        """Return the tasks. Their digest covers the tools and the checkers. Raises `ConfigError`."""
        tasks = read_task_file(self._setup.tasks, self._setup.held_out_share)
        tools = config_digest(self._setup.config, self._setup.folder)
        digested = []
        for task in tasks:
            checks = self._setup.parse_task(task).checks
            code = [check.code for check in checks if isinstance(check, PythonCheck)]
            whole = json.dumps([task.digest, tools, code])
            digested.append(replace(task, digest=hashlib.sha256(whole.encode()).hexdigest()))
        return digested

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Replay the recorded solution with the tools, and nothing; both are checked as an episode is."""
        parsed = self._setup.parse_task(task)
        bridge = self._setup.make_bridge()
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        rewards: dict[str, float] = {}
        reason = ""
        is_here = True
        if bridge is not None:
            bridge.use_folder(folder)
        try:
            async with asyncio.timeout(limits.seconds), open_agent_session() as http:
                world = self._setup.make_world(http, bridge)
                for name in ("oracle", "nop"):
                    outcome, problem = await _replay_solution(world, parsed, folder, name)
                    if problem and not reason:
                        reason = f"{name}: {problem}"
                    assert outcome.reward is not None
                    rewards[name] = outcome.reward
        except TimeoutError:
            reason = f"not checked within {limits.seconds:g} s"
        except (OpenClawError, OSError) as error:
            lacking = await _find_lacking(error, self._setup.sandbox)
            is_here = lacking is None
            reason = lacking or str(error) or type(error).__name__
        finally:
            if bridge is not None:
                await asyncio.shield(bridge.close())
        best = float(task.data.get("best", 1.0))
        reason = reason or _compare_rewards(rewards, best)
        return TaskFitness(
            task=task.id,
            digest=task.digest,
            fit=not reason,
            reason=reason,
            oracle=rewards.get("oracle"),
            nop=rewards.get("nop"),
            checkable=is_here,
        )


async def _find_lacking(error: Exception, sandbox: SandboxConfig) -> str | None:
    """Return what is not there on this machine, if that is why a check failed: it says nothing about the task."""
    if isinstance(error, ToolMissing):
        return str(error)
    if isinstance(error, SandboxError) and not isinstance(error, BoxLost):
        return await find_machine_problem(sandbox)
    return None


async def _replay_solution(
    world: ToolWorld, task: ToolTask, folder: str, name: str
) -> tuple[PlayOutcome, str]:
    """Return the outcome of the recorded calls and answer (`oracle`) or of nothing, and the first call that failed."""
    session = ToolSession(world, task, f"{name}-{Path(folder).name}", folder)
    calls = task.calls
    answer = task.answer
    if name == "nop":
        calls = ()
        answer = ""
    problem = ""
    try:
        await session.open_tools()
        await session.check_code()
        for number, call in enumerate(calls):
            arguments = json.dumps(dict(call.arguments))
            answered = await session.answer_call(
                AgentCall(id=f"call_{number}", name=call.tool, arguments=arguments)
            )
            if answered.is_error:
                problem = problem or f"call {number}, {call.tool}: {answered.result}"
        scores = await session.score_checks(answer)
    finally:
        await asyncio.shield(session.close())
    return score_outcome(scores), problem


def _compare_rewards(rewards: dict[str, float], best: float) -> str:
    if abs(rewards["oracle"] - best) > 1e-9:
        return f"the recorded solution got {rewards['oracle']:g}, not {best:g}"
    if rewards["nop"] >= rewards["oracle"]:
        return f"doing nothing got {rewards['nop']:g}, not less than the recorded solution"
    return ""


class ToolRunner:
    """Plays episodes in this process; tools run in boxes. `agent`: `chat` or `text`."""

    def __init__(self, setup: ToolSetup, agent: str) -> None:
        """Raises `ConfigError`."""
        self._setup = setup
        self._form: CallFormat = (
            TextFormat(setup.config.text_calls) if agent == "text" else ChatFormat()
        )
        self._images = ToolImages(
            wanted=setup.config.images,
            problem=f"--agent {agent} sends text only" if agent == "text" else "",
        )
        self._bridge = setup.make_bridge()
        self._http: aiohttp.ClientSession | None = None

    def open_runner(self, folder: str) -> None:
        if self._bridge is not None:
            self._bridge.use_folder(folder)

    async def close_runner(self) -> None:
        if self._http is not None:
            await self._http.close()
        if self._bridge is not None:
            await self._bridge.close()

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Play the task. What fails or hangs but the policy is void; a policy that takes too long has failed.

        Its time begins when the tools are open.
        """
        parsed = self._setup.parse_task(task)
        if self._http is None:
            self._http = open_agent_session()
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        session = ToolSession(
            self._setup.make_world(self._http, self._bridge), parsed, ticket.episode, folder
        )
        agent = ChatAgent(self._http, ticket, self._setup.config.request)
        try:
            await _open_in_time(session)
            return await ToolEpisode(parsed, session, agent, self._form, self._images).play(
                limits.seconds
            )
        except (OpenClawError, OSError) as error:
            return void_outcome(str(error) or type(error).__name__)
        finally:
            await asyncio.shield(session.close())


async def _open_in_time(session: ToolSession) -> None:
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await session.open_tools()
    except TimeoutError:
        raise ToolBroken(f"the tools did not open within {_OPEN_SECONDS:g} s") from None


def describe_hosts(config: ToolConfig) -> Sequence[str]:
    """Return the hosts besides this machine that the tools may reach."""
    return config.hosts
