"""Graders of replies to evaluation tasks: the llm judge, and the people of the personalisation protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.errors import JudgeError
from openclaw_rl.evals.personalisation.people import PersonEndpoint
from openclaw_rl.evals.personalisation.tasks import open_people
from openclaw_rl.evals.versions.gateway_access import on_free_port
from openclaw_rl.judge import local_model
from openclaw_rl.judge.chat_client import ChatClient
from openclaw_rl.judge.llm import MajorityVote, ReplyGrader
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem
from openclaw_rl.types import Message

# Replies of the other kinds are checked exactly, by execution or by comparison.
JUDGED_KIND = "conversation"


class TaskGrader(Protocol):
    """Grades replies: `ReplyGrader` or `PersonGrader`."""

    name: str

    async def grade_reply(
        self, messages: Sequence[Message], reply: Message, references: Sequence[str]
    ) -> MajorityVote:
        """See `ReplyGrader.grade_reply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderFactory:
    """Opens the graders of some kinds of tasks. A kind without a grader is scored by properties."""

    config: Config
    kinds: Collection[str]
    person: PersonEndpoint | None
    make_client: Callable[[], ChatClient | None]

    @contextlib.asynccontextmanager
    async def open_graders(self) -> AsyncIterator[Mapping[str, TaskGrader]]:
        """Yield the graders by kind, and close their connections. Raises `ConfigError` if one cannot be made."""
        async with contextlib.AsyncExitStack() as opened:
            graders: dict[str, TaskGrader] = dict(
                await opened.enter_async_context(open_people(self.config, self.kinds, self.person))
            )
            if is_judged(self.config, self.kinds):
                judge = ReplyGrader(self.config, asked=self.make_client())
                opened.push_async_callback(judge.close)
                graders[JUDGED_KIND] = judge
            yield graders

    async def check_graders(self) -> None:
        """Raise `JudgeError` if the judge does not return a usable vote on a simple reply."""
        asked = {"role": "user", "content": "What is 2 plus 3?"}
        reply = {"role": "assistant", "content": "5"}
        async with self.open_graders() as graders:
            if JUDGED_KIND not in graders:
                return
            try:
                await graders[JUDGED_KIND].grade_reply([asked], reply, ["5"])
            except JudgeError as error:
                raise JudgeError(
                    f"{str(error).rstrip('.')}. The conversation tasks need its verdicts: start it, or check "
                    "judge.base_url, judge.model and judge.api_key. With --set judge.kind=rules they are scored by "
                    "measurable properties."
                ) from None


def is_judged(config: Config, kinds: Collection[str]) -> bool:
    """Return whether the llm judge scores some of the tasks."""
    return JUDGED_KIND in kinds and config.judge.kind == "llm"


@contextlib.contextmanager
def grader_factory(
    config: Config, kinds: Collection[str], person: PersonEndpoint | None, home: str
) -> Iterator[GraderFactory]:
    """Yield the factory of the graders. A model at `judge.path` is served from `home` meanwhile, if it is needed."""
    served: contextlib.AbstractContextManager[Callable[[], ChatClient | None]]
    served = (
        served_judge(config, home)
        if is_judged(config, kinds)
        else contextlib.nullcontext(lambda: None)
    )
    with served as make_client:
        yield GraderFactory(config=config, kinds=kinds, person=person, make_client=make_client)


@contextlib.contextmanager
def served_judge(config: Config, home: str) -> Iterator[Callable[[], ChatClient | None]]:
    """Serve a model at `judge.path` until the block ends. Yields a function that returns a client for it.

    The function returns None if there is no such model: then the judge has an endpoint of its own.
    """
    if config.judge.path is None:
        yield lambda: None
        return
    served = local_model.engine_config(config.model_copy(update={"home": home}))
    with SubprocessSystem(on_free_port(served), command="serve") as system:
        url = f"{system.base_url}/v1"
        name = f"{served.model.name}@0"
        endpoint = config.judge.model_copy(
            update={"base_url": url, "model": name, "api_key": system.api_key}
        )
        connections = config.judge.workers * config.judge.num_judges
        yield lambda: ChatClient("judge", endpoint, connections=connections)
