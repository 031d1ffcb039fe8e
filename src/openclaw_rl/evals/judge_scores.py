"""Measure the configured judge on labelled reactions: right, abstained or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.errors import JudgeError, OpenClawError
from openclaw_rl.evals.graders import served_judge
from openclaw_rl.evals.labelled_reactions import LabelledReaction, LabelledSet
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.worker import make_judge
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Verdict

MAX_FAILURES = 8
"""Failures of the judge in a row that end the evaluation."""
Outcome = Literal["right", "abstained", "wrong", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReaction:
    """A labelled reaction with the judge's verdict on it, or with the error of the judge."""

    labelled: LabelledReaction
    verdict: Verdict | None = None
    error: str | None = None

    @property
    def score(self) -> int | None:
        """+1 or -1, or None for no evidence: a score of 0 trains as little as no score."""
        return (self.verdict.score if self.verdict else None) or None

    @property
    def outcome(self) -> Outcome:
        """Abstained: no score where one was expected. Wrong: another score, or one where none was expected."""
        if self.verdict is None:
            return "failed"
        if self.score == self.labelled.expected:
            return "right"
        return "abstained" if self.score is None else "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEvaluation:
    """Verdicts of a judge on a set. `judge`: its name with its version; `reactions`: the name of the set."""

    judge: str
    reactions: str
    rows: Sequence[JudgedReaction]

    @property
    def errors(self) -> list[str]:
        """Return the distinct errors that left reactions without a verdict."""
        return list(dict.fromkeys(row.error for row in self.rows if row.error is not None))


def evaluate_judge(
    config: Config, labelled: LabelledSet, *, show: ShowProgress = lambda what, done, total: None
) -> JudgeEvaluation:
    """Judge each reaction of the set with the configured judge, `judge.workers` at once.

    Raise `ConfigError`, `ModelError` or `PluginError` if the judge cannot be made, and what it raises if it fails on
    the first reaction or on `MAX_FAILURES` in a row.
    """
    show("starting the judge", 0, None)
    with (
        tempfile.TemporaryDirectory(prefix="openclaw-eval-") as home,
        _judge_maker(config, home) as make,
    ):
        rows = asyncio.run(_judge_all(make, labelled.reactions, config.judge.workers, show))
    named = next(row.verdict.judge for row in rows if row.verdict is not None)
    return JudgeEvaluation(judge=named, reactions=labelled.name, rows=rows)


@contextlib.contextmanager
def _judge_maker(config: Config, home: str) -> Iterator[Callable[[], Judge]]:
    """Yield a function that makes the judge. A model at `judge.path` is served meanwhile."""
    if config.judge.kind != "llm":
        yield lambda: make_judge(config)
        return
    with served_judge(config, home) as make_client:
        yield lambda: LlmJudge(config, asked=make_client())


async def _judge_all(
    make: Callable[[], Judge],
    reactions: Sequence[LabelledReaction],
    workers: int,
    show: ShowProgress,
) -> list[JudgedReaction]:
    judge = make()
    try:
        return await judge_reactions(judge, reactions, workers=workers, show=show)
    finally:
        if isinstance(judge, LlmJudge):
            await judge.close()


async def judge_reactions(
    judge: Judge, reactions: Sequence[LabelledReaction], *, workers: int, show: ShowProgress
) -> list[JudgedReaction]:
    """Return the judged reactions in order. The first one is judged alone, so that a judge that is down ends it.

    Raise as `evaluate_judge` does.
    """
    slots = asyncio.Semaphore(workers)
    done = 1
    failures = 0

    async def judge_one(labelled: LabelledReaction) -> JudgedReaction:
        nonlocal done, failures
        async with slots:
            try:
                row = JudgedReaction(labelled=labelled, verdict=await judge.judge(labelled.item))
                failures = 0
            except OpenClawError as error:
                failures += 1
                if failures >= MAX_FAILURES:
                    raise JudgeError(
                        f"The judge failed on {failures} reactions in a row: {error}"
                    ) from error
                row = JudgedReaction(labelled=labelled, error=str(error))
        done += 1
        show("judging", done, len(reactions))
        return row

    show("judging", 0, len(reactions))
    try:
        first = JudgedReaction(labelled=reactions[0], verdict=await judge.judge(reactions[0].item))
    except JudgeError as error:
        raise JudgeError(
            f"{str(error).rstrip('.')}. Start the judge, or check judge.* in the settings"
        ) from error
    tasks = [asyncio.create_task(judge_one(labelled)) for labelled in reactions[1:]]
    try:
        return [first, *await asyncio.gather(*tasks)]
    finally:
        for task in tasks:
            task.cancel()
