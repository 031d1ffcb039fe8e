"""Plays an episode with tools: asks for replies, answers their calls, and checks the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.environments.agents.chat_agent import (
    AgentCall,
    ChatAgent,
    ChatReply,
    EpisodeOver,
    tool_message,
)
from openclaw_rl.environments.sources.tools.call_matching import CallMade, ExpectedCall, is_match
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken
from openclaw_rl.environments.sources.tools.tool_config import TextCalls
from openclaw_rl.environments.sources.tools.tool_images import ToolImages
from openclaw_rl.environments.sources.tools.tool_session import ToolSession
from openclaw_rl.environments.sources.tools.tool_task import ToolTask
from openclaw_rl.environments.sources.tools.tool_text import explain_tools, find_text_calls
from openclaw_rl.environments.types import PlayOutcome

# For the checks, besides what the policy left of its time.
_CHECK_SECONDS = 120.0


class CallFormat(Protocol):
    """How calls are written in requests and replies."""

    def begin_messages(
        self, task: ToolTask, definitions: Sequence[dict[str, Any]]
    ) -> list[Mapping[str, Any]]: ...

    def request_tools(self, definitions: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]: ...

    def find_calls(self, reply: ChatReply) -> Sequence[AgentCall]: ...

    def write_results(
        self, calls: Sequence[AgentCall], results: Sequence[CallMade]
    ) -> list[Mapping[str, Any]]: ...


class ChatFormat:
    """Tool calls of the chat completions API."""

    def begin_messages(
        self, task: ToolTask, definitions: Sequence[dict[str, Any]]
    ) -> list[Mapping[str, Any]]:
        return list(task.messages)

    def request_tools(self, definitions: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        return definitions

    def find_calls(self, reply: ChatReply) -> Sequence[AgentCall]:
        return reply.calls

    def write_results(
        self, calls: Sequence[AgentCall], results: Sequence[CallMade]
    ) -> list[Mapping[str, Any]]:
        return [
            tool_message(call, answered.result, answered.images)
            for call, answered in zip(calls, results, strict=True)
        ]


class TextFormat:
    """Calls in the text of a reply, for models without a format of tool calls."""

    def __init__(self, form: TextCalls) -> None:
        self._form = form

    def begin_messages(
        self, task: ToolTask, definitions: Sequence[dict[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return the messages of the task. Their system message explains the tools."""
        if not self._form.explain:
            return list(task.messages)
        explanation = explain_tools(definitions)
        messages = list(task.messages)
        if messages[0]["role"] == "system":
            return [
                {**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{explanation}"},
                *messages[1:],
            ]
        return [{"role": "system", "content": explanation}, *messages]

    def request_tools(self, definitions: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        return ()

    def find_calls(self, reply: ChatReply) -> Sequence[AgentCall]:
        return find_text_calls(reply.text, self._form)

    def write_results(
        self, calls: Sequence[AgentCall], results: Sequence[CallMade]
    ) -> list[Mapping[str, Any]]:
        if self._form.explain:
            texts = [
                f"Result of {call.name}: {answered.result}"
                for call, answered in zip(calls, results, strict=True)
            ]
        else:
            texts = [answered.result for answered in results]
        return [{"role": "user", "content": "\n".join(texts)}]


class ToolEpisode:
    """One episode of a task. `images`: which images of tools the model gets."""

    def __init__(
        self,
        task: ToolTask,
        session: ToolSession,
        agent: ChatAgent,
        form: CallFormat,
        images: ToolImages,
    ) -> None:
        self._task = task
        self._session = session
        self._agent = agent
        self._form = form
        self._images = images
        self._left = [ExpectedCall(tool=call.tool, arguments=call.arguments) for call in task.calls]
        self._steps: list[dict[str, Any]] = []

    async def play(self, seconds: float) -> PlayOutcome:
        """Ask until a reply has no call, or no further reply is given, then check.

        `seconds`: limit of the asking; a policy that takes longer has failed. Raises `AgentReplyFailed`, `ToolBroken`,
        `SandboxError` and `OSError`: nothing is known of the policy then.
        """
        limit = asyncio.timeout(seconds)
        began = time.monotonic()
        try:
            async with limit:
                answer, reason = await self._ask_replies()
        except TimeoutError:
            # Of a tool.
            if not limit.expired():
                raise
            return PlayOutcome(status="done", reward=0.0, reason=f"not done within {seconds:g} s")
        left = seconds - (time.monotonic() - began) + _CHECK_SECONDS
        try:
            async with asyncio.timeout(left):
                scores = await self._session.score_checks(answer)
        except TimeoutError:
            raise ToolBroken(f"the checks did not end within {left:.0f} s") from None
        return score_outcome(scores, self._steps, reason)

    async def _ask_replies(self) -> tuple[str, str | None]:
        """Return the answer and None, or an empty answer and the reason."""
        definitions = self._session.list_definitions()
        messages = self._form.begin_messages(self._task, definitions)
        sent = 0
        try:
            while True:
                reply = await self._agent.ask_reply(messages, self._form.request_tools(definitions))
                self._images.note_ignored(reply.ignored)
                calls = self._form.find_calls(reply)
                results = [await self._session.answer_call(call) for call in calls]
                self._add_step(reply, results)
                if not calls or self._task.only_calls:
                    return reply.text, None
                shown = self._images.choose(results, sent)
                sent += sum(len(answered.images) for answered in shown)
                messages = [*messages, reply.message, *self._form.write_results(calls, shown)]
        except EpisodeOver as over:
            return "", f"no answer: {over}"

    def _add_step(self, reply: ChatReply, results: Sequence[CallMade]) -> None:
        """Give the step reward to a reply all of whose calls are expected. Each expected call counts once."""
        if self._task.step_reward is None:
            return
        # Each call takes its expected one, also after a wrong call.
        matches = [self._take_expected(answered) for answered in results]
        reward = 0.0
        if results and all(matches):
            reward = self._task.step_reward
        self._steps.append({"turn": reply.turn, "reward": reward})

    def _take_expected(self, call: CallMade) -> bool:
        """Remove the first expected call that this one matches. Returns whether there is one."""
        for expected in self._left:
            if is_match(call, expected):
                self._left.remove(expected)
                return True
        return False


def score_outcome(
    scores: Mapping[str, float], steps: Sequence[Mapping[str, Any]] = (), reason: str | None = None
) -> PlayOutcome:
    """Return the outcome: the reward is the product of the checks, which are its parts."""
    reward = 1.0
    for score in scores.values():
        reward *= score
    return PlayOutcome(
        status="done", reward=reward, parts=dict(scores), steps=list(steps), reason=reason
    )
