"""Score a checkpoint, served from a temporary home, or versions of a home, on the evaluation tasks.

Without seeds the replies are greedy, so the same checkpoint gives the same replies. A task is scored by the properties
that its reply must have; a conversation is graded by the llm judge instead, if one is set, and a personal task by a
simulated person.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.errors import ConfigError, JudgeError, OpenClawError, RequestError
from openclaw_rl.evals.graders import GraderFactory, TaskGrader, grader_factory, is_judged
from openclaw_rl.evals.personalisation.people import PersonEndpoint
from openclaw_rl.evals.personalisation.tasks import PERSONAL_KIND, personal_kinds, personal_tasks
from openclaw_rl.evals.reply_properties import TaskReply, find_violations
from openclaw_rl.evals.tasks import TASK_SETS, EvalTask
from openclaw_rl.evals.versions.gateway_access import (
    GatewayAccess,
    check_known,
    check_versions,
    open_gateway,
    open_session,
)
from openclaw_rl.settings.load import Config

PROPERTIES_SCORER = "properties"
_PARALLEL_TASKS = 8

AskModel = Callable[[EvalTask], Awaitable[TaskReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """Score of one task.

    `solved`: None if the judge is undecided, or after an error. `reason`: why it is not solved, or the judge's tally.
    `error`: why there was no reply or no verdict, else None. `scored_by`: "properties", or the judge with its model
    and the version of its prompt. `violations`: for each property of the task why the reply violates it, None if it
    holds; empty without a reply. `votes`: the judge's votes, as {"score", "reason"} or {"error"}. `seed`: of the
    sample; None: the reply is greedy.
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
    seed: int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """Settings of an evaluation. `num`: maximum number of tasks per kind; `max_tokens`: limit of every reply.

    `seeds`: samples of each task at temperature 1; 1: one greedy reply. `person`: the model that simulates the people
    of the personal tasks; None: rules. `with_lessons`: whether the prompts have the lessons of the home's key.
    """

    kinds: Sequence[str]
    num: int | None = None
    max_tokens: int | None = None
    seeds: int = 1
    person: PersonEndpoint | None = None
    with_lessons: bool = False

    def select_tasks(self) -> list[tuple[str, EvalTask]]:
        """Return (kind, task) pairs. Raises `ConfigError` for an unknown kind."""
        wanted = list(dict.fromkeys(kind.strip() for kind in self.kinds))
        unknown = [kind for kind in wanted if kind not in (*TASK_SETS, PERSONAL_KIND)]
        if unknown:
            raise ConfigError(
                f"--tasks {','.join(unknown)}: expected some of {', '.join([*TASK_SETS, PERSONAL_KIND])}"
            )
        kinds: list[str] = []
        for kind in wanted:
            kinds += personal_kinds() if kind == PERSONAL_KIND else [kind]
        seeds: Sequence[int | None] = range(self.seeds) if self.seeds > 1 else [None]
        pairs = []
        for kind in kinds:
            make_tasks = TASK_SETS.get(kind, personal_tasks)
            for task in make_tasks()[: self.num]:
                max_tokens = self.max_tokens or task.max_tokens
                for seed in seeds:
                    pairs.append((kind, replace(task, seed=seed, max_tokens=max_tokens)))
        return pairs


def evaluate_model(
    config: Config,
    plan: EvalPlan,
    *,
    show: ShowProgress = lambda what, done, total: None,
) -> EvalResult:
    """Serve `model.path` from a temporary home and score it.

    Raise `ConfigError` for an unknown kind or an invalid judge, `JudgeError` if the judge does not answer, and
    `OpenClawError` if a model cannot be served.
    """
    with tempfile.TemporaryDirectory(prefix="openclaw-eval-") as home:
        served = config.model_copy(update={"home": home})
        (result,) = _evaluate_served(config, served, home, plan, None, show)
    return replace(result, model=config.model.path)


def evaluate_versions(
    config: Config,
    plan: EvalPlan,
    versions: Sequence[str],
    *,
    show: ShowProgress = lambda what, done, total: None,
) -> list[EvalResult]:
    """Score versions of the home on the same tasks, through its gateway (`open_gateway`), as side traffic.

    Raise as `evaluate_model` does, and `ConfigError` for a version that does not exist or whose files were removed.
    """
    with tempfile.TemporaryDirectory(prefix="openclaw-eval-") as judge_home:
        return _evaluate_served(config, config, judge_home, plan, versions, show)


def _evaluate_served(
    config: Config,
    served: Config,
    judge_home: str,
    plan: EvalPlan,
    versions: Sequence[str] | None,
    show: ShowProgress,
) -> list[EvalResult]:
    """Score the versions of the home of `served`; None: its head alone."""
    check_known(served, versions or ())
    tasks = plan.select_tasks()
    kinds = list(dict.fromkeys(kind for kind, _ in tasks))
    if is_judged(config, kinds):
        show("checking the judge", 0, None)
    with grader_factory(config, kinds, plan.person, judge_home) as graders:
        asyncio.run(graders.check_graders())
        show("starting the model", 0, None)
        with open_gateway(served, owner=config) as access:
            names = (
                [access.model]
                if versions is None
                else [access.pinned(access.resolve(v)) for v in versions]
            )
            asyncio.run(check_versions(access, names))
            return [
                EvalResult(
                    model=f"{name} with lessons" if plan.with_lessons else name,
                    kinds=kinds,
                    tasks=asyncio.run(_ask_and_score(access, name, plan, tasks, graders, show)),
                )
                for name in names
            ]


async def _ask_and_score(
    access: GatewayAccess,
    name: str,
    plan: EvalPlan,
    tasks: Sequence[tuple[str, EvalTask]],
    graders: GraderFactory,
    show: ShowProgress,
) -> list[TaskScore]:
    async with (
        open_session(access, with_lessons=plan.with_lessons) as session,
        graders.open_graders() as opened,
    ):
        return await score_tasks(
            lambda task: request_reply(session, name, task), tasks, opened, show
        )


async def request_reply(session: aiohttp.ClientSession, model: str, task: EvalTask) -> TaskReply:
    """Return the reply, greedy without a seed.

    Raise `RequestError` if the request is refused, and `OpenClawError` without a reply.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(task.messages),
        "max_tokens": task.max_tokens,
    }
    body |= (
        {"temperature": 0} if task.seed is None else {"temperature": 1, "seed": _request_seed(task)}
    )
    body |= {"tools": list(task.tools)} if task.tools else {}
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            if response.status == 200:
                return TaskReply.from_choice((await response.json())["choices"][0])
            text = f"the gateway answered {response.status}: {(await response.text())[:500]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OpenClawError(
            f"no reply from the gateway: {error or type(error).__name__}"
        ) from error
    raise (
        RequestError(text, status=response.status) if response.status < 500 else OpenClawError(text)
    )


def _request_seed(task: EvalTask) -> int:
    """Return the seed of a sample. Tasks with the same seed would begin with the same draw, so their name is in it."""
    return zlib.crc32(f"{task.seed}/{task.name}".encode())


async def score_tasks(
    request_reply: AskModel,
    tasks: Sequence[tuple[str, EvalTask]],
    graders: Mapping[str, TaskGrader],
    show: ShowProgress,
) -> list[TaskScore]:
    """Return the scores of (kind, task) pairs in order, a few at once. `graders`: by kind; else properties score."""
    slots = asyncio.Semaphore(_PARALLEL_TASKS)
    done = 0

    async def score_one(kind: str, task: EvalTask) -> TaskScore:
        nonlocal done
        async with slots:
            score = await _score_task(request_reply, kind, task, graders.get(kind))
        done += 1
        show("scoring", done, len(tasks))
        return score

    show("scoring", 0, len(tasks))
    return await asyncio.gather(*(score_one(kind, task) for kind, task in tasks))


async def _score_task(
    request_reply: AskModel, kind: str, task: EvalTask, grader: TaskGrader | None
) -> TaskScore:
    scored_by = PROPERTIES_SCORER if grader is None else grader.name
    score = TaskScore(kind=kind, name=task.name, seed=task.seed, scored_by=scored_by)
    try:
        reply = await request_reply(task)
    except RequestError as error:
        # E.g. a model without tool support: the task is not solved.
        return replace(score, solved=False, reason=str(error))
    except OpenClawError as error:
        return replace(score, error=str(error))
    violations = await asyncio.to_thread(find_violations, reply, task.properties)
    reasons = [text for text in violations.values() if text is not None]
    score = replace(
        score,
        reply=_shown_reply(reply),
        finish_reason=reply.finish_reason,
        solved=not reasons,
        reason="; ".join(reasons),
        violations=violations,
    )
    return score if grader is None else await _grade_score(score, task, reply, grader)


async def _grade_score(
    score: TaskScore, task: EvalTask, reply: TaskReply, grader: TaskGrader
) -> TaskScore:
    """Return the score with the judge's verdict instead. A judge that fails or is undecided gives no score."""
    references = task.properties.get("reference_answer", ())
    try:
        grade = await grader.grade_reply(
            task.messages, {"role": "assistant", "content": reply.text}, references
        )
    except JudgeError as error:
        return replace(score, solved=None, reason="", error=str(error))
    solved = {1: True, -1: False}.get(grade.score or 0)
    votes = [
        {"error": v.error} if v.error else {"score": v.score, "reason": v.reason}
        for v in grade.votes
    ]
    return replace(score, solved=solved, reason=grade.reason, votes=votes)


def _shown_reply(reply: TaskReply) -> str:
    shown = {"content": reply.text, "tool_calls": list(reply.tool_calls)}
    return json.dumps({key: value for key, value in shown.items() if value}, ensure_ascii=False)
