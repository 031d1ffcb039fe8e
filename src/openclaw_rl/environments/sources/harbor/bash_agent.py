"""Agents that work in the box of a task: one bash tool, replies whose text is a command, or a program of the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from openclaw_rl.environments.agents.chat_agent import AgentCall, ChatAgent, tool_message
from openclaw_rl.environments.box_program import BoxAccess, BoxProgram
from openclaw_rl.environments.sources.harbor.task_box import TaskBox, describe_failure
from openclaw_rl.environments.types import EpisodeTicket
from openclaw_rl.errors import OpenClawError
from openclaw_rl.sandbox.box import CommandResult

COMMAND_SECONDS = 120.0
# Characters of a command's output that the model sees.
_SHOWN = 8000
_MAX_REPLIES = 200
# As for the source `command`: 1 is also an uncaught exception in Python.
_PROGRAM_ENDS = (0, 1)
_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command in the working folder. Files stay between commands; variables and the "
        f"current folder do not. A command may take {COMMAND_SECONDS:g} seconds.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:\n```|```|\Z)", re.DOTALL)
_TOOLS_PROMPT = (
    "You work on a task in a Linux shell, with the tool bash. The working folder is {cwd}. There is no network. "
    "When the task is done, answer without calling the tool."
)
_TEXT_PROMPT = (
    "You work on a task in a Linux shell. The working folder is {cwd}. There is no network. Each of your replies is "
    "run as a shell command: write the command alone, or in one fenced block:\n\n```bash\nls -l\n```\n\n"
    "You then see its output. When the task is done, reply with: exit"
)


class BoxAgent(Protocol):
    """Works on a task until it is done, the policy gets no further reply, or it is cancelled.

    Raises `EpisodeOver`, `OpenClawError` (the environment failed).
    """

    async def work_on(self, box: TaskBox, client: ChatAgent) -> None: ...

    def box_access(self, ticket: EpisodeTicket) -> BoxAccess:
        """Return what the box needs besides the task."""
        ...


class AgentProgramFailed(OpenClawError):
    """Raised if a program in the box ended in a way that says nothing about the policy."""


class ToolAgent:
    """For models that call tools: one tool, `bash`. A reply without a call ends the work."""

    async def work_on(self, box: TaskBox, client: ChatAgent) -> None:
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": _TOOLS_PROMPT.format(cwd=box.plan.cwd)},
            {"role": "user", "content": box.folder.instruction},
        ]
        for _ in range(_MAX_REPLIES):
            reply = await client.ask_reply(messages, [_TOOL])
            if not reply.calls:
                return
            messages.append(reply.message)
            for call in reply.calls:
                output = await _answer_call(call, box)
                messages.append(tool_message(call, output))

    def box_access(self, ticket: EpisodeTicket) -> BoxAccess:
        """Return nothing: the agent works outside, and only commands run in the box."""
        return BoxAccess()


class TextAgent:
    """For models that call no tools: the text of a reply is a command. `exit` or an empty reply ends the work.

    `prompt`: the words that explain this, with `{cwd}`; None: the task's own words are all that the model gets.
    """

    def __init__(self, prompt: str | None = _TEXT_PROMPT) -> None:
        self._prompt = prompt

    async def work_on(self, box: TaskBox, client: ChatAgent) -> None:
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": box.folder.instruction}]
        if self._prompt is not None:
            messages.insert(0, {"role": "system", "content": self._prompt.format(cwd=box.plan.cwd)})
        for _ in range(_MAX_REPLIES):
            reply = await client.ask_reply(messages)
            command = find_command(reply.text)
            if command in ("", "exit"):
                return
            output = await _run_shown(command, box)
            messages += [reply.message, {"role": "user", "content": output}]

    def box_access(self, ticket: EpisodeTicket) -> BoxAccess:
        """Return nothing: the agent works outside, and only commands run in the box."""
        return BoxAccess()


class ProgramAgent:
    """A program of the user, such as mini-swe-agent, that runs in the box itself and asks the gateway for replies.

    `granted`: further environment variables.
    """

    def __init__(self, program: BoxProgram, granted: Mapping[str, str]) -> None:
        self._program = program
        self._granted = granted

    async def work_on(self, box: TaskBox, client: ChatAgent) -> None:
        """Run the program until it ends. Raises `AgentProgramFailed` for an end that says nothing about the policy."""
        env = {**box.plan.variables, **self._granted, "INSTRUCTION": box.folder.instruction}
        # The time of the agent is the caller's.
        seconds = box.sandbox.lifetime
        result = await self._program.run_in(
            box.box, client.ticket, cwd=box.plan.cwd, env=env, seconds=seconds
        )
        if result.exit_code not in _PROGRAM_ENDS:
            raise AgentProgramFailed(f"the program of the agent: {describe_failure(result)}")

    def box_access(self, ticket: EpisodeTicket) -> BoxAccess:
        """Return the gateway and the files of the program."""
        return self._program.access_with(ticket)


AGENTS: Mapping[str, BoxAgent] = MappingProxyType(
    {"tools": ToolAgent(), "text": TextAgent(), "plain": TextAgent(prompt=None)}
)
"""The agents by name. `plain` is `text` without a word of ours."""


def find_command(reply: str) -> str:
    """Return the command of a reply: its first fenced block, else the whole reply, without a prompt sign before it."""
    fence = _FENCE.search(reply)
    command = (fence[1] if fence else reply).strip()
    return command.removeprefix("$ ").strip()


def show_result(result: CommandResult) -> str:
    """Return what the model sees of a command's end."""
    ending = f"exit status {result.exit_code}"
    if result.timed_out:
        ending += " (stopped: it took too long)"
    output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
    if len(output) > _SHOWN:
        half = _SHOWN // 2
        output = f"{output[:half]}\n[{len(output) - _SHOWN} characters left out]\n{output[-half:]}"
    return f"{ending}\n{output}" if output else ending


async def _answer_call(call: AgentCall, box: TaskBox) -> str:
    """Run the command of a tool call. A malformed call is a fault of the policy, which reads why."""
    if call.name != "bash":
        return f"error: there is no tool {call.name!r}. Expected bash"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return f"error: the arguments are not valid JSON ({error})"
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if not isinstance(command, str):
        return 'error: expected the arguments {"command": "..."}'
    return await _run_shown(command, box)


async def _run_shown(command: str, box: TaskBox) -> str:
    try:
        return show_result(await box.run_command(command, COMMAND_SECONDS))
    except ValueError as error:
        # A NUL byte, or too long for a shell.
        return f"error: {error}"
