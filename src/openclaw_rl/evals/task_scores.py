"""Score a checkpoint on the evaluation tasks, served from a temporary home.

Replies are greedy, so the same checkpoint gives the same replies. A task is scored by the properties that its reply
must have; a conversation is graded by the llm judge instead, if one is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, JudgeError, OpenClawError, RequestError
from openclaw_rl.evals.reply_properties import TaskReply, find_violations
from openclaw_rl.evals.tasks import TASK_SETS, EvalTask
from openclaw_rl.judge import local_model
from openclaw_rl.judge.chat_client import ChatClient
from openclaw_rl.judge.llm import ReplyGrader
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem

PROPERTIES_SCORER = "properties"
_JUDGED_KIND = "conversation"  # replies of the other kinds are checked exactly, by execution or by comparison
_PARALLEL_TASKS = 8
_REPLY_TIMEOUT = 600.0  # seconds

AskModel = Callable[[EvalTask], Awaitable[TaskReply]]
ShowProgress = Callable[[str, int, int | None], None]
"""Called with what is being done, the number of finished tasks, and the number of all tasks if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """Score of one task.

    `solved`: None if the judge is undecided, or after an error. `reason`: why it is not solved, or the judge's tally.
    `error`: why there was no reply or no verdict, else None. `scored_by`: "properties", or the judge with its model
    and the version of its prompt. `violations`: for each property of the task why the reply violates it, None if it
    holds; empty without a reply. `votes`: the judge's votes, as {"score", "reason"} or {"error"}.
    """

    kind: str
    name: str
    reply: str = ""
    finish_reason: str = ""
    solved: bool | None = None
    reason: str = ""
    error: str | None = None
    scored_by: str
    violations: Mapping[str, str | None] = field(default_factory=dict)
    votes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """Scores of one model. `kinds`: in the order in which they were asked for."""

    model: str
    kinds: Sequence[str]
    tasks: Sequence[TaskScore]

    def of_kind(self, kind: str) -> list[TaskScore]:
        return [one for one in self.tasks if one.kind == kind]

    @property
    def errors(self) -> list[str]:
        """Return the distinct errors that left tasks without a score."""
        return list(dict.fromkeys(one.error for one in self.tasks if one.error is not None))


def evaluate_model(
    config: Config,
    kinds: Sequence[str],
    *,
    num: int | None = None,
    max_tokens: int | None = None,
    show: ShowProgress = lambda what, done, total: None,
) -> EvalResult:
    """Serve `model.path` and score it. `num`: maximum number of tasks per kind. `max_tokens`: limit of every reply.

    Raise `ConfigError` for an unknown kind or an invalid judge, `JudgeError` if the judge does not answer, and
    `OpenClawError` if a model cannot be served.
    """
    wanted = list(dict.fromkeys(kind.strip() for kind in kinds))
    if unknown := [kind for kind in wanted if kind not in TASK_SETS]:
        raise ConfigError(f"--eval-tasks {','.join(unknown)}: expected some of {', '.join(TASK_SETS)}")
    tasks = [(kind, _limited(task, max_tokens)) for kind in wanted for task in TASK_SETS[kind]()[:num]]
    with tempfile.TemporaryDirectory(prefix="openclaw-eval-") as home, contextlib.ExitStack() as running:
        make_grader = None
        if _JUDGED_KIND in wanted and config.judge.kind == "llm":
            show("checking the judge", 0, None)
            make_grader = running.enter_context(_grader_maker(config, home))
            asyncio.run(_check_grader(make_grader))
        show("starting the model", 0, None)
        system = running.enter_context(SubprocessSystem(_scratch_config(config, home), command="serve"))
        scores = asyncio.run(_ask_and_score(system, tasks, make_grader, show))
    return EvalResult(model=config.model.path, kinds=wanted, tasks=scores)


def _limited(task: EvalTask, max_tokens: int | None) -> EvalTask:
    return task if max_tokens is None else replace(task, max_tokens=max_tokens)


def _scratch_config(config: Config, home: str) -> Config:
    serve = config.serve.model_copy(update={"port": free_port(), "host": "127.0.0.1"})
    return config.model_copy(update={"home": home, "serve": serve, "data": type(config.data)()})


# --------------------------------------------------------------------------------------------------------- the judge


@contextlib.contextmanager
def served_judge(config: Config, home: str) -> Iterator[Callable[[], ChatClient | None]]:
    """Serve a model at `judge.path` until the block ends. Yields a function that returns a client for it.

    The function returns None if there is no such model: then the judge has an endpoint of its own.
    """
    if config.judge.path is None:
        yield lambda: None
        return
    served = local_model.engine_config(config.model_copy(update={"home": home}))
    with SubprocessSystem(_scratch_config(served, served.home), command="serve") as system:
        url, name = f"{system.base_url}/v1", f"{served.model.name}@0"
        endpoint = config.judge.model_copy(update={"base_url": url, "model": name, "api_key": system.api_key})
        connections = config.judge.workers * config.judge.num_judges
        yield lambda: ChatClient("judge", endpoint, connections=connections)


@contextlib.contextmanager
def _grader_maker(config: Config, home: str) -> Iterator[Callable[[], ReplyGrader]]:
    """Yield a function that makes a grader."""
    with served_judge(config, home) as make_client:
        yield lambda: ReplyGrader(config, asked=make_client())


async def _check_grader(make_grader: Callable[[], ReplyGrader]) -> None:
    """Raise `JudgeError` if the judge does not return a usable vote on a simple reply."""
    grader = make_grader()
    try:
        await grader.grade_reply(
            [{"role": "user", "content": "What is 2 plus 3?"}], {"role": "assistant", "content": "5"}, ["5"]
        )
    except JudgeError as error:
        raise JudgeError(
            f"{str(error).rstrip('.')}. The conversation tasks need its verdicts: start it, or check judge.base_url, "
            "judge.model and judge.api_key. With --set judge.kind=rules they are scored by measurable properties."
        ) from None
    finally:
        await grader.close()


# --------------------------------------------------------------------------------------------------------- the tasks


async def _ask_and_score(
    system: SubprocessSystem,
    tasks: Sequence[tuple[str, EvalTask]],
    make_grader: Callable[[], ReplyGrader] | None,
    show: ShowProgress,
) -> list[TaskScore]:
    headers = {"Authorization": f"Bearer {system.api_key}", "X-Turn-Type": "side"}
    grader = make_grader() if make_grader else None
    limit = aiohttp.ClientTimeout(total=_REPLY_TIMEOUT)
    try:
        async with aiohttp.ClientSession(system.base_url, headers=headers, timeout=limit) as session:
            return await score_tasks(
                lambda task: request_reply(session, system.config.model.name, task), tasks, grader, show
            )
    finally:
        if grader is not None:
            await grader.close()


async def request_reply(session: aiohttp.ClientSession, model: str, task: EvalTask) -> TaskReply:
    """Return the greedy reply. Raise `RequestError` if the request is refused, `OpenClawError` without a reply."""
    body: dict[str, Any] = {"model": model, "messages": list(task.messages), "max_tokens": task.max_tokens}
    body |= {"temperature": 0} | ({"tools": list(task.tools)} if task.tools else {})
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            if response.status == 200:
                return TaskReply.from_choice((await response.json())["choices"][0])
            text = f"the gateway answered {response.status}: {(await response.text())[:500]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OpenClawError(f"no reply from the gateway: {error or type(error).__name__}") from error
    raise RequestError(text, status=response.status) if response.status < 500 else OpenClawError(text)


async def score_tasks(
    ask: AskModel, tasks: Sequence[tuple[str, EvalTask]], grader: ReplyGrader | None, show: ShowProgress
) -> list[TaskScore]:
    """Return the scores of (kind, task) pairs in order, a few at once. `grader`: None scores all by properties."""
    slots, done = asyncio.Semaphore(_PARALLEL_TASKS), 0

    async def score_one(kind: str, task: EvalTask) -> TaskScore:
        nonlocal done
        async with slots:
            score = await _score_task(ask, kind, task, grader if kind == _JUDGED_KIND else None)
        done += 1
        show("scoring", done, len(tasks))
        return score

    show("scoring", 0, len(tasks))
    return await asyncio.gather(*(score_one(kind, task) for kind, task in tasks))


async def _score_task(ask: AskModel, kind: str, task: EvalTask, grader: ReplyGrader | None) -> TaskScore:
    scored_by = PROPERTIES_SCORER if grader is None else grader.name
    try:
        reply = await ask(task)
    except RequestError as error:  # e.g. a model without tool support: the task is not solved
        return TaskScore(kind=kind, name=task.name, solved=False, reason=str(error), scored_by=scored_by)
    except OpenClawError as error:
        return TaskScore(kind=kind, name=task.name, error=str(error), scored_by=scored_by)
    violations = await asyncio.to_thread(find_violations, reply, task.properties)
    found = [text for text in violations.values() if text is not None]
    score = TaskScore(
        kind=kind,
        name=task.name,
        reply=_shown_reply(reply),
        finish_reason=reply.finish_reason,
        solved=not found,
        reason="; ".join(found),
        scored_by=scored_by,
        violations=violations,
    )
    return score if grader is None else await _grade_score(score, task, reply, grader)


async def _grade_score(score: TaskScore, task: EvalTask, reply: TaskReply, grader: ReplyGrader) -> TaskScore:
    """Return the score with the judge's verdict instead. A judge that fails or is undecided gives no score."""
    references = task.properties.get("reference_answer", ())
    try:
        grade = await grader.grade_reply(task.messages, {"role": "assistant", "content": reply.text}, references)
    except JudgeError as error:
        return replace(score, solved=None, reason="", error=str(error))
    solved = {1: True, -1: False}.get(grade.score or 0)
    votes = [{"error": v.error} if v.error else {"score": v.score, "reason": v.reason} for v in grade.votes]
    return replace(score, solved=solved, reason=grade.reason, votes=votes)


def _shown_reply(reply: TaskReply) -> str:
    shown = {"content": reply.text, "tool_calls": list(reply.tool_calls)}
    return json.dumps({key: value for key, value in shown.items() if value}, ensure_ascii=False)
