"""A round of practice: replies to earlier prompts are generated, stored as turns, and trained on as one batch.

Half of the replies are the policy's own under the plain prompt. The others are the teacher's: the frozen base, with
the lessons in its prompt, or, in a few, with a wish that contradicts them: a contrast, which keeps the policy following
its prompt. Both get their credit from that teacher (`methods/teacher_replies.py`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common.progress import WorkNote
from openclaw_rl.gates.reply_source import (
    BrokenVersion,
    DelayCode,
    GateReply,
    NoGateway,
    RepliesDelayed,
    ReplyOrder,
    ReplySource,
)
from openclaw_rl.methods.types import LessonGap
from openclaw_rl.practice.budget import waiting_reason
from openclaw_rl.practice.plan import PracticePlan, plan_practice, quote_lessons
from openclaw_rl.practice.prompts import MAX_REPLY_TOKENS, PracticePrompt, PromptSelector
from openclaw_rl.practice.share import PracticeShare
from openclaw_rl.protocols import Batch, PolicyWork, Waiting
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store import leases, turn_states
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import examinations, lessons, practice_turns
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.people import PeopleOfPolicies
from openclaw_rl.store.lessons.practice_turns import PRACTICE_SCOPE, PracticeTurn
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import OwnerFilter, PolicyOwner, owner_filter
from openclaw_rl.types import (
    Convention,
    ExchangeStatus,
    FinishReason,
    Ids,
    Kind,
    Origin,
    Policy,
    Reply,
    Request,
    Sampling,
    Span,
)

log = logging.getLogger(__name__)
BASE_VERSION = 0
CONTRAST_LESSON = "contrast"
"""Key of the wish in the prompt of a contrast, in the place of a lesson's id."""
AVERAGED_STEPS = 2
"""Newest divergences of a lesson whose mean decides whether it is learned; one alone is too noisy."""
MIN_TEMPERATURE = 0.3
_GREEDY = 0.01
"""Below this temperature, a reply is the likeliest tokens."""
FORGOTTEN_FACTOR = 2.0
"""A learned lesson is practised again from this times the bound on."""


@dataclass(slots=True)
class _Round:
    """A round whose replies are being generated, for one head."""

    head: Policy
    plan: PracticePlan
    prompts: Sequence[PracticePrompt]
    from_teacher: int
    """How many of the prompts the teacher answers: the first ones."""
    contrasts: int
    """How many of those have a wish that contradicts the lesson, where one is known: the first ones."""
    seed: int
    replies: list[GateReply] = field(default_factory=list)
    times: list[tuple[float, float]] = field(default_factory=list)
    """When each reply began and ended."""

    @property
    def is_complete(self) -> bool:
        return len(self.replies) == len(self.prompts)

    @property
    def seconds(self) -> float:
        """How long its replies have taken."""
        # Replies of one call have the same times.
        return sum(ended - began for began, ended in set(self.times))

    def origin(self, place: int) -> Origin | None:
        """Return who gives the reply to one of the prompts; None: the head."""
        if place < self.contrasts and self.prompts[place].contrast is not None:
            return Origin.CONTRAST
        return Origin.TEACHER if place < self.from_teacher else None

    def prompt(self, place: int) -> tuple[str, Ids]:
        """Return the hint in the prompt of a reply, and the token ids of that prompt."""
        prompt = self.prompts[place]
        origin = self.origin(place)
        if origin is Origin.CONTRAST and prompt.contrast is not None:
            return prompt.contrast
        if origin is Origin.TEACHER:
            return prompt.hint, prompt.hinted_ids
        return "", prompt.plain_ids

    def order(self, place: int, *, beside: bool = False) -> ReplyOrder:
        """Return the order of the reply to one of the prompts. `beside`: it may run beside people's replies."""
        sampling = self.prompts[place].exchange.request.sampling
        is_teacher = self.origin(place) is not None
        _, prompt_ids = self.prompt(place)
        return ReplyOrder(
            version=BASE_VERSION if is_teacher else self.head.version,
            prompt_ids=prompt_ids.tolist(),
            max_tokens=min(sampling.max_tokens or MAX_REPLY_TOKENS, MAX_REPLY_TOKENS),
            temperature=_practice_temperature(sampling.temperature),
            seed=self.seed + place,
            beside=beside,
        )


def missing_share(gaps: Sequence[LessonGap]) -> float:
    """Return the share of a lesson's effect that is missing in the policy, 0 or more; 0 for one without an effect."""
    effect = sum(gap.effect for gap in gaps)
    if effect <= 0:
        return 0.0
    missing = sum(gap.missing for gap in gaps)
    return max(0.0, missing / effect)


def _practice_temperature(temperature: float) -> float:
    """Return the temperature for a reply to a prompt that was answered at `temperature`: the same, from 0.3 to 1.

    So the weights learn the replies that people get. Below 0.3 replies are nearly alike. After a greedy reply, it is 1.
    """
    if temperature < _GREEDY:
        return 1.0
    return min(1.0, max(MIN_TEMPERATURE, temperature))


class PracticeSession:
    """Practises the lessons that are not in the weights: a source of batches for policies with too few new turns."""

    def __init__(
        self,
        store: Store,
        settings: PracticeConfig,
        selector: PromptSelector,
        source: ReplySource,
        *,
        per: PolicyOwner = "all",
        convention: Convention = "scaled",
        at_once: int = 2,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`per`: who has a policy of its own, which practises its own lessons on its own prompts.

        `at_once`: replies that are asked for in one call; `clock`: seconds since the epoch.
        """
        self._store = store
        self._settings = settings
        self._selector = selector
        self._source = source
        self._convention: Convention = convention
        self._per: PolicyOwner = per
        self._at_once = at_once
        self._seed = seed
        self._clock = clock
        # By the name of the policy.
        self._rounds: dict[str, _Round] = {}
        self._share = PracticeShare(settings.busy_share)
        self._people = PeopleOfPolicies()

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return the turns of a complete round; else generate a few more replies. None: there is nothing to practise.

        Raises `DamagedRow`, and `StaleLease`.
        """
        head = policy.head
        owner = owner_filter(self._per, head.name)
        round_ = self._rounds.pop(head.name, None)
        with self._store.read() as conn:
            pending = practice_turns.pending_turns(conn, owner)
            is_current = round_ is not None and self._is_current(conn, round_, head, owner)
        if round_ is not None and (pending or not is_current):
            self._drop_round(round_)
            round_ = None
        # Turns of this process, or of one that was killed before its step.
        if pending:
            return Batch(head=head, turns=pending, is_fixed=True)
        if round_ is None:
            begun = self._begin(head, owner)
            if not isinstance(begun, _Round):
                return begun
            round_ = begun
        step = self._generate(round_)
        if not round_.is_complete:
            return step
        del self._rounds[head.name]
        batch = self._store_round(round_, policy, owner)
        if batch is None:
            return Waiting(note=step.note)
        return batch

    def _store_round(
        self, round_: _Round, policy: PolicyWork, owner: OwnerFilter | None
    ) -> Batch | None:
        """Store the turns of a complete round, and return them; None if a lesson was forgotten meanwhile."""
        with self._store.write() as conn:
            leases.check(conn, policy.lease, policy.lease_now)
            is_current = self._is_current(conn, round_, policy.head, owner)
            if is_current:
                practice_turns.add_turns(conn, self._make_turns(round_), at=self._clock())
        if not is_current:
            self._drop_round(round_)
        with self._store.read() as conn:
            pending = practice_turns.pending_turns(conn, owner)
        return Batch(head=policy.head, turns=pending, is_fixed=True) if pending else None

    def _drop_round(self, round_: _Round) -> None:
        """Leave out the replies of a round. The time that they took counts toward the budget."""
        if round_.replies:
            with self._store.write() as conn:
                practice_turns.add_dropped_seconds(conn, round_.seconds, at=self._clock())

    def _is_current(
        self, conn: Connection, round_: _Round, head: Policy, owner: OwnerFilter | None
    ) -> bool:
        """Return whether the head, the prompts and their lessons are those for which the round began.

        A word that concerns none of them, such as a fact or the wish of another user, does not end the round.
        """
        if round_.head.version != head.version:
            return False
        sources = {prompt.exchange.request.id for prompt in round_.prompts}
        if not practice_turns.can_be_asked(conn, sources):
            return False
        plan = self._plan(conn, head, owner)
        return self._selector.has_current_lessons(conn, plan, head.name, round_.prompts)

    def _plan(self, conn: Connection, head: Policy, owner: OwnerFilter | None) -> PracticePlan:
        is_alone = self._people.is_alone(conn, head.name, owner)
        return plan_practice(conn, head, self._clock(), is_alone=is_alone)

    def policies(self, conn: Connection) -> list[str]:
        """Return the names of the policies that may have something to practise."""
        return practice_turns.practising_policies(conn, self._per)

    def _begin(self, head: Policy, owner: OwnerFilter | None) -> _Round | Waiting | None:
        """Choose the lessons and the prompts of the next round; None: there is nothing to practise."""
        settings = self._settings
        now = self._clock()
        with self._store.read() as conn:
            plan = self._plan(conn, head, owner)
            quoted = quote_lessons(plan.waiting)
            if not plan.targets:
                if not quoted:
                    return None
                reason = "what was said before, or what other users want, contradicts it"
                return _waiting(quoted, f"more words of the person: {reason}")
            reason = waiting_reason(conn, settings, plan, head, now)
            if reason:
                return _waiting(quoted, reason)
            seed = (self._seed * 1_000_003 + practice_turns.count_all(conn, owner)) % 2**31
            prompts = self._selector.select_prompts(
                conn,
                plan,
                head,
                owner=owner,
                count=settings.replies,
                rehearsal_share=settings.rehearsal_share,
                seed=seed,
            )
        if self._request_examinations(head):
            return _waiting(quoted, "the examination of its lessons", others_wait=True)
        if not prompts:
            return _waiting(quoted, "a prompt of the person that it applies to")
        from_teacher = round(settings.replies * settings.teacher_share)
        contrasts = round(settings.replies * settings.contrast_share)
        return _Round(
            head=head,
            plan=plan,
            prompts=prompts,
            from_teacher=from_teacher,
            contrasts=min(contrasts, from_teacher),
            seed=seed,
        )

    def _request_examinations(self, head: Policy) -> bool:
        """Ask the gateway to examine the lessons of the prompts. Returns whether any was not examined."""
        check = self._selector.check
        if check is None or not check.missing:
            return False
        with self._store.write() as conn:
            for texts in sorted(check.missing):
                examinations.request_examination(conn, texts, head.identity, check.key)
        check.missing.clear()
        return True

    def _generate(self, round_: _Round) -> Waiting:
        """Generate a few more replies, and keep the round unless it cannot be continued."""
        began = self._clock()
        beside = self._share.may_run_beside(began)
        count = 1 if beside else self._at_once
        first = len(round_.replies)
        places = range(first, min(first + count, len(round_.prompts)))
        quoted = quote_lessons(round_.plan.targets)
        try:
            round_.replies += self._source.generate(
                [round_.order(place, beside=beside) for place in places]
            )
        except RepliesDelayed as error:
            if error.code is DelayCode.BUSY:
                self._share.record_refusal(self._clock())
            self._rounds[round_.head.name] = round_
            return _delayed(quoted, error, others_wait=True)
        except (NoGateway, BrokenVersion) as error:
            self._drop_round(round_)
            return _delayed(quoted, error, others_wait=isinstance(error, NoGateway))
        ended = max(began, self._clock())
        round_.times += [(began, ended)] * len(places)
        if beside:
            self._share.record_beside(began, ended)
        else:
            self._share.record_pause()
        self._rounds[round_.head.name] = round_
        note = WorkNote(f"practising {quoted}: {first} of {len(round_.prompts)} replies")
        return Waiting(note=note, has_worked=True, polls=True)

    def _make_turns(self, round_: _Round) -> list[PracticeTurn]:
        turns = []
        for place, (prompt, reply) in enumerate(zip(round_.prompts, round_.replies, strict=True)):
            order = round_.order(place)
            origin = round_.origin(place)
            hint, prompt_ids = round_.prompt(place)
            began, ended = round_.times[place]
            texts = {lesson.id: lesson.text for lesson in prompt.lessons}
            if origin is Origin.CONTRAST:
                in_prompt = {CONTRAST_LESSON: hint}
            elif origin is Origin.TEACHER:
                in_prompt = texts
            else:
                in_prompt = {}
            source = prompt.exchange.request
            request = Request(
                id=f"practice-{secrets.token_hex(12)}",
                scope=PRACTICE_SCOPE,
                agent=source.agent,
                user=source.user,
                kind=Kind.PRACTICE,
                dialect="practice",
                messages=source.messages,
                tools=source.tools,
                template=source.template,
                marks=(),
                sampling=Sampling(
                    temperature=order.temperature,
                    seed=order.seed,
                    max_tokens=order.max_tokens,
                    convention=self._convention,
                ),
                prompt_ids=prompt_ids,
                lessons=in_prompt,
                version=order.version,
                identity=round_.head.identity,
                admitted_at=began,
                origin=origin,
            )
            turns.append(
                PracticeTurn(
                    request=request,
                    reply=self._make_reply(request, reply, ended),
                    source=source.id,
                    lessons=texts,
                    hint=hint or prompt.hint,
                )
            )
        return turns

    def _make_reply(self, request: Request, reply: GateReply, ended: float) -> Reply:
        is_cut = reply.finish == "length"
        # A reply that was not cut ends with a stop token, which is no text.
        text_ids = reply.token_ids if is_cut else reply.token_ids[:-1]
        decoder = self._selector.renderer.new_text_decoder(())
        decoder.push(text_ids.tolist())
        decoder.finish()
        size = len(reply.token_ids)
        return Reply(
            id=request.id,
            status=ExchangeStatus.DONE,
            message=decoder.parser.to_message(),
            response_ids=reply.token_ids,
            logprobs=reply.logprobs,
            mask=np.ones(size, np.bool_),
            spans=(Span(start=0, end=size, version=request.version),),
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            mark=None,
            finished_at=ended,
        )

    def record_divergences(
        self, conn: Connection, head: Policy, gaps: Mapping[str, LessonGap]
    ) -> None:
        """Store the divergence of each practised lesson from `head`, and whether it is learned, or no longer.

        The divergence is the share of the lesson's effect on the teacher that is missing in the head. `gaps`: by turn.
        """
        lineage = policies.lineage(conn, head.version)
        bound = self._settings.max_divergence
        # Turns of a lesson that was edited or forgotten meanwhile.
        taken_back = turn_states.taken_back(conn, list(gaps))
        contrasts = practice_turns.contrast_turns(conn, gaps.keys())
        turns_by_lesson = practice_turns.lessons_of_practice(
            conn, gaps.keys() - {*taken_back, *contrasts}
        )
        for lesson in _measured_lessons(conn, turns_by_lesson):
            divergence = missing_share([gaps[turn] for turn in turns_by_lesson[lesson.id]])
            lessons.record_divergence(conn, lesson.id, head.version, divergence, at=self._clock())
            newest = practice_turns.newest_divergences(
                conn, lesson.id, lineage, limit=AVERAGED_STEPS
            )
            mean = float(np.mean(newest))
            if (
                lesson.state is LessonState.ACTIVE
                and len(newest) == AVERAGED_STEPS
                and mean < bound
            ):
                lessons.mark_learned(conn, lesson.id, head.version)
                log.info('learned: "%s" (divergence %.3f)', lesson.text, mean)
            elif lesson.state is LessonState.LEARNED and divergence > FORGOTTEN_FACTOR * bound:
                lessons.mark_active(conn, lesson.id)
                lessons.renew(conn, lesson.id, at=self._clock())
                log.info(
                    'no longer in the weights: "%s" (divergence %.3f)', lesson.text, divergence
                )


def _waiting(quoted: str, event: str, *, others_wait: bool = False) -> Waiting:
    """Return that practice of the quoted lessons waits for an event."""
    note = WorkNote(f"practice of {quoted} waits for {event}")
    return Waiting(note=note, others_wait=others_wait)


def _delayed(quoted: str, error: Exception, *, others_wait: bool) -> Waiting:
    """Return that practice of the quoted lessons gets no replies now."""
    note = WorkNote(f"practice of {quoted} waits: {error}")
    return Waiting(note=note, others_wait=others_wait)


def _measured_lessons(conn: Connection, ids: Iterable[str]) -> list[Lesson]:
    """Return the lessons, of those with these ids, whose divergence a step of practice has measured.

    Beside an active lesson, the divergence says nothing about a learned one.
    """
    linked = (lessons.get(conn, id_) for id_ in ids)
    practised = [lesson for lesson in linked if lesson is not None and lesson.is_practised]
    active = [lesson for lesson in practised if lesson.state is LessonState.ACTIVE]
    return active or practised
