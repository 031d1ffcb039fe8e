"""Measure the configured judge on labelled reactions: right, abstained or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import JudgeError, OpenClawError
from openclaw_rl.evals.graders import served_judge
from openclaw_rl.evals.versions.gateway_access import on_free_port
from openclaw_rl.judge import local_model
from openclaw_rl.judge.head import auto, choice
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.head.labelled_reactions import (
    Half,
    LabelledReaction,
    LabelledSet,
    load_reactions,
)
from openclaw_rl.judge.head.model import HeadReport
from openclaw_rl.judge.head.training import measure_head
from openclaw_rl.judge.heard import judge_heard
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.worker import make_judge
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem
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
class HeadEvaluation:
    """The head alone. `fitted`: cross-validated on the reactions that it is fitted to.

    `measured`: on the others; None: there are no others.
    """

    name: str
    fitted: HeadReport
    measured: HeadReport | None
    by_language: Mapping[str, HeadReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEvaluation:
    """Verdicts of a judge on a set. `judge`: its name with its version; `reactions`: the name of the set.

    `head`: the head of the auto judge alone, if it has one.
    """

    judge: str
    reactions: str
    rows: Sequence[JudgedReaction]
    head: HeadEvaluation | None = None

    @property
    def errors(self) -> list[str]:
        """Return the distinct errors that left reactions without a verdict."""
        return list(dict.fromkeys(row.error for row in self.rows if row.error is not None))


def open_reactions(path: Path | None, half: str, languages: Sequence[str]) -> LabelledSet:
    """Return a half of a set in some languages; without any, in all. Raises `ConfigError` as `load_reactions` does."""
    return load_reactions(path, half=Half(half)).in_languages(languages)


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
        _judge_maker(config, home, show) as make,
    ):
        rows, head = asyncio.run(_judge_all(make, labelled.reactions, config.judge.workers, show))
    names = dict.fromkeys(row.verdict.judge for row in rows if row.verdict is not None)
    named = " and ".join(sorted(names)) if head is not None else next(iter(names))
    return JudgeEvaluation(judge=named, reactions=labelled.name, rows=rows, head=head)


@contextlib.contextmanager
def _judge_maker(config: Config, home: str, show: ShowProgress) -> Iterator[Callable[[], Judge]]:
    """Yield a function that makes the judge. A model that it asks or reads is served meanwhile."""
    if config.judge.kind == "llm":
        with served_judge(config, home) as make_client:
            yield lambda: LlmJudge(config, asked=make_client())
        return
    if config.judge.kind != "auto" or choice.rules_reason(config) is not None:
        yield lambda: make_judge(config)
        return
    with served_head(config, home, show) as make_head:
        yield make_head


@contextlib.contextmanager
def served_head(config: Config, home: str, show: ShowProgress) -> Iterator[Callable[[], AutoJudge]]:
    """Serve the base that the auto judge reads. Yields a function that returns the judge, open, in a running loop.

    The head is kept in the home of the settings, if there is one, so that it is fitted once.
    """
    served = config.model_copy(update={"home": home})
    is_own = config.judge.path is not None
    if is_own:
        served = local_model.engine_config(served)
    with SubprocessSystem(on_free_port(served), command="serve") as system:
        kept = config.home_dir if config.home_dir.is_dir() else Path(home)
        yield lambda: auto.open_measured(config, system.config, kept / auto.HEAD_FOLDER, show)


async def _judge_all(
    make: Callable[[], Judge],
    reactions: Sequence[LabelledReaction],
    workers: int,
    show: ShowProgress,
) -> tuple[list[JudgedReaction], HeadEvaluation | None]:
    judge = make()
    try:
        if isinstance(judge, AutoJudge):
            await judge.prepared_head()
        rows = await judge_reactions(judge, reactions, workers=workers, show=show)
        head = await measure_opinions(judge, rows) if isinstance(judge, AutoJudge) else None
        return rows, head
    finally:
        if isinstance(judge, LlmJudge | AutoJudge):
            await judge.close()


async def measure_opinions(judge: AutoJudge, rows: Sequence[JudgedReaction]) -> HeadEvaluation:
    """Return what the head alone makes of the reactions, and how it did on those that it was fitted to."""
    prepared = await judge.prepared_head()
    fitted = {one.id for one in auto.calibration_set().reactions}
    if any(row.labelled.id in fitted for row in rows):
        return HeadEvaluation(
            name=prepared.name, fitted=prepared.report, measured=None, by_language={}
        )
    read = [(row.labelled, await judge.classify(row.labelled.item)) for row in rows]
    known = [(labelled, opinion) for labelled, opinion in read if opinion is not None]
    by_rules = [await judge.rules.judge(labelled.item) for labelled, _ in known]

    def measure(language: str | None) -> HeadReport:
        chosen = [
            (labelled, opinion, verdict)
            for (labelled, opinion), verdict in zip(known, by_rules, strict=True)
            if language in (None, labelled.language)
        ]
        return measure_head(
            np.array([opinion.probabilities for _, opinion, _ in chosen]),
            [labelled for labelled, _, _ in chosen],
            [verdict for _, _, verdict in chosen],
            prepared.head.threshold,
        )

    languages = dict.fromkeys(labelled.language for labelled, _ in known)
    return HeadEvaluation(
        name=prepared.name,
        fitted=prepared.report,
        measured=measure(None),
        by_language={language: measure(language) for language in languages},
    )


async def judge_reactions(
    judge: Judge, reactions: Sequence[LabelledReaction], *, workers: int, show: ShowProgress
) -> list[JudgedReaction]:
    """Return the judged reactions in order. The first one is judged alone, so that a judge that is down ends it.

    Raise as `evaluate_judge` does.
    """
    slots = asyncio.Semaphore(workers)
    topics = load_topics(None)
    done = 1
    failures = 0

    async def judge_one(labelled: LabelledReaction) -> JudgedReaction:
        nonlocal done, failures
        async with slots:
            try:
                row = JudgedReaction(
                    labelled=labelled, verdict=await judge_heard(judge, labelled.item, topics)
                )
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
        first = JudgedReaction(
            labelled=reactions[0], verdict=await judge_heard(judge, reactions[0].item, topics)
        )
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
