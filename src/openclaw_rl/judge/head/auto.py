"""The judge of `judge.kind auto`: rules where they are proven, else the head over the states of the frozen base."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.engines import registry
from openclaw_rl.errors import JudgeNotReady
from openclaw_rl.judge.head.base_states import BaseStates, connect_states
from openclaw_rl.judge.head.choice import rules_reason
from openclaw_rl.judge.head.judge_addressed import without_addressed_text
from openclaw_rl.judge.head.labelled_reactions import Half, LabelledSet, load_reactions
from openclaw_rl.judge.head.model import Opinion
from openclaw_rl.judge.head.people import FeatureReader, PeoplesHeads
from openclaw_rl.judge.head.rule_trust import RuleTrust, measure_rules
from openclaw_rl.judge.head.training import PreparedHead, prepare_head
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.protocols import Judge
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.settings.load import Config
from openclaw_rl.store import file_digests
from openclaw_rl.store.db import Store
from openclaw_rl.types import JudgeInput, Verdict, Vote

log = logging.getLogger("openclaw_rl.judge")
HEAD_FOLDER = "judge_head"
"""Folder in the home, in which heads are kept."""
RETRY_AFTER = 5.0
"""Seconds after which a turn is looked at again that no head can judge yet."""


def make_judge(config: Config) -> Judge:
    """Return the judge of `judge.kind auto`. Raises `ConfigError` and `ModelError`."""
    rules = RulesJudge.load(config.judge.rules_path)
    reason = rules_reason(config)
    if reason is not None:
        log.info("judge.kind auto: the rules judge, because %s", reason)
        return rules
    return AutoJudge(config, connect_states(config), rules, folder=config.home_dir / HEAD_FOLDER)


def open_measured(config: Config, served: Config, folder: Path, show: ShowProgress) -> AutoJudge:
    """Return the judge of `config`, open, on the engine and the store of another system, which serves its base.

    It learns from nobody. `folder`: where heads are kept. Call it in a running loop.
    """
    rules = RulesJudge.load(config.judge.rules_path)
    states = BaseStates(
        registry.connect_engine(served), ModelFiles.from_config(served.model), own_engine=False
    )
    judge = AutoJudge(config, states, rules, folder=folder)
    judge.open(Store.open(served.store_path), show=show, learns=False, closes_store=True)
    return judge


class AutoJudge:
    """`protocols.Judge` that asks the rules where they are proven, else the head. It needs `open` before."""

    def __init__(
        self,
        config: Config,
        states: BaseStates,
        rules: RulesJudge,
        *,
        folder: Path,
        labelled: LabelledSet | None = None,
    ) -> None:
        """`folder`: where heads are kept. `labelled`: reactions to fit to; default: those that ship."""
        self.rules = rules
        self._min_precision = config.judge.min_precision
        self._states = states
        self._folder = folder
        self._labelled = labelled or calibration_set()
        self._trust: asyncio.Task[RuleTrust] | None = None
        self._prepared: asyncio.Task[PreparedHead] | None = None
        self._early: PreparedHead | None = None
        self._people: PeoplesHeads | None = None
        self._reader = FeatureReader(states, rules)
        self._store_of_digests: Store | None = None
        self._learns = True
        self._closes_store = False
        self._count = (0, 0)

    def open(
        self,
        store: Store,
        *,
        show: ShowProgress | None = None,
        learns: bool = True,
        closes_store: bool = False,
    ) -> None:
        """Begin to prepare the head in the background. `show`: shows how far it is.

        `store`: of the base's digests, and, if the judge `learns`, of the scores of people. `closes_store`: with the
        judge.
        """
        self._closes_store = closes_store
        self._store_of_digests = store
        self._learns = learns
        self._trust = asyncio.create_task(
            trust_rules(self.rules, self._labelled), name="trust in rules"
        )
        self._prepared = asyncio.create_task(self._prepare(store, show), name="judge's head")

    async def close(self) -> None:
        """Stop what runs in the background, and close the connection to the engine."""
        tasks = [task for task in (self._trust, self._prepared) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._people is not None:
            await self._people.close()
        await self._states.close()
        if self._closes_store and self._store_of_digests is not None:
            self._store_of_digests.close()

    @property
    def status_note(self) -> str:
        """The judge and the share that it understands, for people."""
        done, total = self._count
        task = self._prepared
        if task is None or not task.done() or task.cancelled():
            meanwhile = "" if self._early is None else "; a first head judges what it is sure of"
            return f"its head reads labelled reactions: {done} of {total}{meanwhile}"
        if task.exception() is not None:
            return f"its head cannot be fitted: {task.exception()}"
        return describe_head(task.result())

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the verdict.

        While the head is being fitted, the rules decide where they can, then a head that is fitted to the reactions
        that were read so far, where it is sure. Raises `JudgeNotReady` for other turns, and what the engine raises.
        """
        item = without_addressed_text(item)
        by_rules = await self.rules.judge(item)
        assert self._trust is not None, "the judge is not open"
        trust = await asyncio.shield(self._trust)
        if trust.covers(item, by_rules):
            return by_rules
        if self.is_ready:
            prepared = await self.prepared_head()
            if not prepared.report.beats_rules:
                return by_rules
            opinion = await self.classify(item)
            return (
                by_rules
                if opinion is None
                else make_head_verdict(item, prepared, opinion, by_rules)
            )
        if by_rules.score is not None or by_rules.hints:
            return by_rules
        return await self._judge_early(item, by_rules)

    async def _judge_early(self, item: JudgeInput, by_rules: Verdict) -> Verdict:
        task = self._prepared
        if task is not None and task.done() and not task.cancelled():
            error = task.exception()
            assert error is not None, "the judge is ready"
            self._try_again()
            raise error
        early = self._early
        # It need not beat the rules: it only judges what they have no opinion on.
        if early is not None:
            features = await self._reader.read_features(item)
            if features is None:
                return by_rules
            opinion = await asyncio.to_thread(early.head.classify, features)
            if opinion.is_sure:
                return make_head_verdict(item, early, opinion, by_rules)
        raise JudgeNotReady(self.status_note, retry_after=RETRY_AFTER)

    async def classify(self, item: JudgeInput) -> Opinion | None:
        """Return what the head makes of a turn; None if its reaction has no text. Raises what the engine raises."""
        await self.prepared_head()
        assert self._people is not None
        features = await self._reader.read_features(item)
        if features is None:
            return None
        head = await self._people.head_of(item.turn)
        return await asyncio.to_thread(head.classify, features)

    @property
    def is_ready(self) -> bool:
        """Whether the head is fitted to all labelled reactions."""
        task = self._prepared
        return task is not None and task.done() and not task.cancelled() and not task.exception()

    async def prepared_head(self) -> PreparedHead:
        """Return the head, once it is fitted. After a failure, the next call tries again."""
        assert self._prepared is not None, "the judge is not open"
        if self._prepared.done() and not self.is_ready:
            self._try_again()
        # A caller that is cancelled does not end the work of the others.
        return await asyncio.shield(self._prepared)

    def _try_again(self) -> None:
        assert self._store_of_digests is not None
        self._prepared = asyncio.create_task(
            self._prepare(self._store_of_digests, None), name="judge's head"
        )

    async def _prepare(self, store: Store, show: ShowProgress | None) -> PreparedHead:
        files = self._states.files
        digests = await asyncio.to_thread(file_digests.digest_files, store, files.weights)

        def show_count(done: int, total: int) -> None:
            self._count = (done, total)
            if show is not None:
                show("reading labelled reactions", done, total)

        prepared = await prepare_head(
            self._states,
            self.rules,
            self._labelled,
            folder=self._folder,
            identity=compute_identity(files, digests),
            min_precision=self._min_precision,
            show=show_count,
            take_early=self._take_early,
        )
        people = store if self._learns else None
        self._people = PeoplesHeads(prepared.head, self._reader, people)
        log.info("judge.kind auto: %s", describe_head(prepared))
        return prepared

    def _take_early(self, early: PreparedHead) -> None:
        self._early = early
        report = early.report
        log.info(
            "a first head, of %d labelled reactions, judges what it is sure of: it scores %.0f%%, %.0f%% of its scores "
            "are right",
            report.rows,
            100 * report.coverage,
            100 * report.precision,
        )


def make_head_verdict(
    item: JudgeInput, prepared: PreparedHead, opinion: Opinion, by_rules: Verdict
) -> Verdict:
    """Return the verdict of a head. A lesson that the rules read in the words stands beside it."""
    reason = opinion.describe()
    reason_code = None
    if opinion.score is None:
        reason_code = ReasonCode.NO_EVIDENCE if opinion.is_sure else None
        reason = f"{'no evidence' if opinion.is_sure else 'abstained'}: {reason}"
    hints = tuple(
        Vote(score=None, hint=vote.hint, reason=vote.reason) for vote in by_rules.votes if vote.hint
    )
    return make_verdict(
        item,
        prepared.name,
        opinion.score,
        reason,
        votes=(Vote(score=opinion.score, reason=reason), *hints),
        hints=by_rules.hints,
        reason_code=reason_code,
    )


async def trust_rules(rules: RulesJudge, labelled: LabelledSet) -> RuleTrust:
    """Return where the rules decide, measured on labelled reactions."""
    reactions = labelled.reactions
    return measure_rules(reactions, [await rules.judge(one.item) for one in reactions])


def calibration_set() -> LabelledSet:
    """Return the labelled reactions that heads are fitted to."""
    return load_reactions(half=Half.CALIBRATION)


def describe_head(prepared: PreparedHead) -> str:
    """Return what a head understands, for people."""
    report = prepared.report
    if not report.beats_rules:
        return (
            f"the rules judge, because the head does not beat it: it scores {report.coverage:.0%} of the reactions "
            f"with a score, the rules {report.rules_coverage:.0%}"
        )
    return (
        f"{prepared.name} scores {report.coverage:.0%} of the reactions with a score, {report.precision:.0%} of its "
        f"scores are right (the rules: {report.rules_coverage:.0%}, {report.rules_precision:.0%}); cross-validated on "
        f"{report.rows} labelled reactions"
    )
