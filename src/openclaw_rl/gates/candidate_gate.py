"""The gate in front of promotion: compares a candidate with the head, piece by piece, until it has decided.

What it has found out is in this process only. After a restart it begins again with the same candidate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.examination.served_forms import ServedForm, newest_forms
from openclaw_rl.gates.evidence import Evidence, decide
from openclaw_rl.gates.held_out import HeldOutEvidence, VersionScorer
from openclaw_rl.gates.reply_comparer import ReplyComparer, ReplyEvidence
from openclaw_rl.gates.reply_source import BrokenVersion, NoGateway, RepliesDelayed
from openclaw_rl.methods.types import Sample
from openclaw_rl.protocols import Waiting
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import policies, probe_answers, rejected_batches, training_queue
from openclaw_rl.store.lineage.policy_names import OwnerFilter, PolicyOwner, owner_filter
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
# Newest ones, with which praised replies are compared.
USUAL_REPLIES = 16
MAX_FORMS = 4
"""People whose prompts, with their lessons, the probes are asked in."""
LessonMode = Literal["until_learned", "always", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The decision on a candidate."""

    promotes: bool
    reason: Reason | None  # of a rejection
    metrics: Mapping[str, float]


PASSED = GateResult(promotes=True, reason=None, metrics={})


@dataclass(slots=True, kw_only=True)
class _Examination:
    """The state of the examination of one candidate."""

    candidate: Policy
    head: Policy
    started: float  # seconds, monotonic
    held_out: HeldOutEvidence
    replies: ReplyEvidence
    wait_limit: float  # seconds that it may wait in all for its replies
    replies_began: float  # seconds, monotonic
    continued: float  # seconds, monotonic: when the last replies came
    waited: float = 0.0  # seconds until then without replies
    is_retry: bool  # a turn of the batch was in a refused one
    is_suspect: bool  # which was refused because its verdicts contradict what was learned
    known_answers: Mapping[str, str]  # of the head to probes, from its own examination

    @property
    def evidence(self) -> list[Evidence]:
        return [*self.held_out.evidence, *self.replies.evidence]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def reply_seconds(self) -> float:
        """Seconds since the first reply could be asked for."""
        return time.monotonic() - self.replies_began

    def metrics(self) -> dict[str, float]:
        """Return its figures: of each kind of evidence the mean difference and the count."""
        metrics = {
            "gate/seconds": self.seconds,
            "gate/comparisons": float(len(self.replies.answers)),
        }
        for kind in self.evidence:
            metrics |= {
                f"gate/{kind.name}": kind.mean,
                f"gate/{kind.name}/count": float(len(kind.differences)),
            }
        return metrics | self.held_out.metrics() | self.replies.metrics()


class CandidateGate:
    """Examines one candidate at a time."""

    def __init__(
        self,
        store: Store,
        settings: GateConfig,
        comparer: ReplyComparer | None = None,
        per: PolicyOwner = "all",
        lessons: LessonMode = "until_learned",
    ) -> None:
        """`comparer`: compares replies of both versions; None: none are generated. `per`: who has a policy.

        `lessons`: `serve.lessons`, which says what stands in people's prompts.
        """
        self._store = store
        self.settings = settings
        self._comparer = comparer
        self.per = per
        self._lessons: LessonMode = lessons
        self._current: _Examination | None = None

    @property
    def examines(self) -> bool:
        """Whether candidates are compared with the head."""
        return self.settings.kind == "probes"

    @property
    def bounds_metrics(self) -> bool:
        """Whether the metrics of a step must be within the bounds of `train.safety`."""
        return self.settings.kind != "off"

    def examine(
        self,
        candidate: Policy,
        head: Policy,
        scorer: VersionScorer,
        load_batch: Callable[[], Sequence[Sample]],
    ) -> GateResult | Waiting:
        """Do the next piece of the examination. Return the decision, or what there is more to do or to wait for.

        `load_batch`: returns the samples that the candidate was trained on, without replays and imported turns.
        """
        if not self.examines:
            return PASSED
        examination = self._current
        if examination is None or examination.candidate.version != candidate.version:
            examination = self._begin(candidate, head, scorer, load_batch())
            self._current = examination
            compared = f"version {candidate.version} with version {head.version}"
            step = _worked(f"comparing {compared} on held-out turns")
        else:
            try:
                step = self._compare_replies(examination)
            except BrokenVersion as error:
                if error.version == candidate.version:
                    self._current = None
                    broken = Reason(ReasonCode.BROKEN, str(error))
                    return GateResult(promotes=False, reason=broken, metrics=examination.metrics())
                log.warning("version %d is examined without replies: %s", candidate.version, error)
                examination.replies.waiting.clear()
                step = _worked(f"version {candidate.version} is examined without replies")
        is_spent = self._is_spent(examination, is_waiting=not step.has_worked)
        decision, reason = decide(examination.evidence, is_spent=is_spent)
        if decision != "reject":
            held_out_reason = examination.held_out.rejection_reason(
                is_retry=examination.is_retry, is_suspect=examination.is_suspect
            )
            if held_out_reason is not None:
                decision = "reject"
                reason = held_out_reason
        echo_reason = examination.replies.echoes.rejection_reason()
        if echo_reason is not None:
            decision = "reject"
            reason = echo_reason
        if decision is None:
            return step
        self._current = None
        with self._store.write() as conn:
            probe_answers.record_answers(conn, examination.replies.answers)
        return GateResult(
            promotes=decision == "promote", reason=reason, metrics=examination.metrics()
        )

    def _is_spent(self, examination: _Examination, *, is_waiting: bool) -> bool:
        """Return whether there are no more replies to compare, or no more time for them."""
        waited = examination.waited + time.monotonic() - examination.continued
        is_late = is_waiting and waited >= examination.wait_limit
        is_over = examination.reply_seconds >= self.settings.seconds
        return not examination.replies.waiting or is_over or is_late

    def _begin(
        self, candidate: Policy, head: Policy, scorer: VersionScorer, batch: Sequence[Sample]
    ) -> _Examination:
        """Compare the likelihood of the held-out turns, and choose the prompts of the replies."""
        started = time.monotonic()
        settings = self.settings
        with self._store.read() as conn:
            limit = max(settings.held_out, settings.prompts)
            owner = owner_filter(self.per, candidate.name)
            items = training_queue.held_out_turns(
                conn, version=candidate.version, limit=limit, owner=owner
            )
            usual = training_queue.held_out_turns(
                conn,
                version=candidate.version,
                limit=min(settings.held_out, USUAL_REPLIES),
                owner=owner,
                any_taste=True,
            )
            answers = probe_answers.answers_of_version(conn, head.version)
            ids = [s.turn for s in batch]
            base = policies.get(conn, 0)
            forms = self._newest_forms(conn, head, owner)
            known_lessons = lessons.list_lessons(conn, policy=candidate.name)
            refused = rejected_batches.refused_together(conn, ids)
            contradicting = rejected_batches.refused_together(
                conn, ids, code=ReasonCode.CONTRADICTION
            )
        assert base is not None, "every store has the base"
        held_out = HeldOutEvidence(settings)
        if settings.held_out:
            others = [item for item in usual if item.turn.id not in refused]
            held_out.compare(
                items[: settings.held_out], usual, others, batch, candidate, head, base, scorer
            )
        of_model = [item for item in items if item.exchange.request.identity == head.identity][
            : settings.prompts
        ]
        prompts = (
            []
            if self._comparer is None
            else self._comparer.choose_prompts(of_model, settings.budget, forms)
        )
        return _Examination(
            candidate=candidate,
            head=head,
            started=started,
            wait_limit=candidate.metrics.get("seconds", 0.0)
            if settings.wait is None
            else settings.wait,
            replies_began=time.monotonic(),
            continued=time.monotonic(),
            held_out=held_out,
            is_retry=bool(refused),
            is_suspect=bool(contradicting),
            replies=ReplyEvidence(
                prompts,
                settings.margin,
                settings.error,
                [lesson.text for lesson in known_lessons],
            ),
            known_answers={
                answer.probe: answer.candidate_answer for answer in answers if answer.turn is None
            },
        )

    def _newest_forms(
        self, conn: Connection, head: Policy, owner: OwnerFilter | None
    ) -> list[ServedForm]:
        """Return how the people who talked to the policy last are asked."""
        if self._comparer is None:
            return []
        return newest_forms(
            conn,
            head.name,
            owner=owner,
            mode=self._lessons,
            identity=head.identity,
            key=self._store.secret,
            limit=MAX_FORMS,
        )

    def _compare_replies(self, examination: _Examination) -> Waiting:
        """Compare replies to a few more prompts; without a gateway, to none."""
        assert self._comparer is not None, "there are no prompts otherwise"
        candidate = examination.candidate.version
        head = examination.head.version
        replies = examination.replies
        prompts = replies.waiting[: self.settings.workers]
        compared = f"replies of version {candidate} with version {head}"
        step = _worked(f"comparing {compared}: {len(replies.answers)} so far")
        began = time.monotonic()
        try:
            self._comparer.compare(prompts, replies, candidate, head, examination.known_answers)
        except RepliesDelayed as error:
            details = f"version {candidate} waits for the gate and answers nobody: {error}"
            return Waiting(note=WorkNote(details, frozenset({Wait.GATE})), polls=True)
        except NoGateway as error:
            log.info("version %d is examined without replies: %s", candidate, error)
            replies.waiting.clear()
        else:
            del replies.waiting[: len(prompts)]
            examination.waited += began - examination.continued
            examination.continued = time.monotonic()
        return step


def _worked(details: str) -> Waiting:
    """Return that a piece of the examination was done, and that the next one can be done at once."""
    return Waiting(note=WorkNote(details), has_worked=True, polls=True)
