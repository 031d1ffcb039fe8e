"""The prompts of practice: a person's earlier ones, plain and with the text of the lessons that apply to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.common.images.image_prompt import has_images
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.errors import RequestError
from openclaw_rl.practice.examined_lessons import TeachingCheck
from openclaw_rl.practice.plan import PracticePlan
from openclaw_rl.practice.rehearsal import ask_instead, rehearsal_questions, rehearsed_places
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store import exchanges
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lessons.examinations import lesson_capacity
from openclaw_rl.store.lessons.fitting import fitting_lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import PromptContext, asked_text
from openclaw_rl.store.lineage.policy_names import OwnerFilter
from openclaw_rl.types import Exchange, Ids, Policy, Request

MAX_PROMPTS = 128
"""Newest prompts that are asked again, in equal shares of the people whose lessons are practised."""
MAX_REPLY_TOKENS = 256
_IN_FORCE = (LessonState.ACTIVE, LessonState.LEARNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticePrompt:
    """An earlier prompt, with all lessons that apply to it. `plain_ids` [P], `hinted_ids` [P + hint].

    `contrast`: a wish that contradicts one of the lessons, and the ids of the prompt with it instead; None if none is
    known.
    """

    exchange: Exchange
    lessons: tuple[Lesson, ...]
    hint: str
    plain_ids: Ids
    hinted_ids: Ids
    contrast: tuple[str, Ids] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSelector:
    """Selects prompts to which a lesson applies that the weights have not learned.

    `key`: of the hashes of questions. `read_topics`: is called when they are needed, so that it does not delay the
    start of a trainer. `context_length`: tokens of prompt and reply; None: not limited. `check`: None: every lesson
    teaches, examined or not.
    """

    renderer: Renderer
    transient: EphemeralMatcher
    key: bytes
    read_topics: Callable[[], HintTopics]
    context_length: int | None = None
    check: TeachingCheck | None = None

    def select_prompts(
        self,
        conn: Connection,
        plan: PracticePlan,
        head: Policy,
        *,
        owner: OwnerFilter | None = None,
        count: int,
        rehearsal_share: float = 0.0,
        seed: int,
    ) -> list[PracticePrompt]:
        """Return `count` prompts of the head's policy to which one of the plan's targets applies, if there are any.

        `rehearsal_share`: share of the prompts whose question is replaced by one that nobody asked.

        Each lesson gets an equal share of the prompts, each prompt comes once before any comes again, and the order
        depends on the seed alone.
        """
        rng = random.Random(seed)
        ids = _newest_prompts(conn, plan.targets, head.identity, owner)
        by_lesson = self._prompts_by_lesson(conn, plan, head, ids)
        decks = [_shuffled(prompts, count, rng) for prompts in by_lesson.values() if prompts]
        if not decks:
            return []
        # One of each deck in turn.
        chosen = []
        for number in range(count):
            deck = decks[number % len(decks)]
            chosen.append(deck[number // len(decks)])
        for place in sorted(rehearsed_places(count, rehearsal_share, rng)):
            question = rng.choice(rehearsal_questions())
            exchange = ask_instead(chosen[place].exchange, question)
            rehearsed = self._make_prompt(conn, plan, head.name, exchange)
            # None if the lesson is not examined, or the template rejects the messages: the person's prompt stays.
            if rehearsed is not None:
                chosen[place] = rehearsed
        return chosen

    def _prompts_by_lesson(
        self, conn: Connection, plan: PracticePlan, head: Policy, ids: Sequence[str]
    ) -> dict[str, list[PracticePrompt]]:
        """Return the prompts to which each target applies, by the id of the lesson. `ids`: of the exchanges."""
        by_lesson: dict[str, list[PracticePrompt]] = {lesson.id: [] for lesson in plan.targets}
        readable = exchanges.get_readable(conn, ids)
        # Sorted by id, and so in a random order.
        for id_ in ids:
            if id_ not in readable:
                continue
            prompt = self._make_prompt(conn, plan, head.name, readable[id_])
            if prompt is None:
                continue
            for lesson in prompt.lessons:
                if lesson.id in by_lesson:
                    by_lesson[lesson.id].append(prompt)
        return by_lesson

    def has_current_lessons(
        self, conn: Connection, plan: PracticePlan, policy: str, prompts: Sequence[PracticePrompt]
    ) -> bool:
        """Return whether the lessons of all these prompts, and their texts, are still those of the plan."""
        distinct: dict[tuple[str, bytes], PracticePrompt] = {}
        for prompt in prompts:
            key = (prompt.exchange.request.id, prompt.plain_ids.tobytes())
            distinct[key] = prompt
        for prompt in distinct.values():
            current = self._lessons_of(conn, plan, policy, prompt.exchange)
            if _ids_and_texts(current) != _ids_and_texts(prompt.lessons):
                return False
        return True

    def _lessons_of(
        self, conn: Connection, plan: PracticePlan, policy: str, exchange: Exchange
    ) -> tuple[Lesson, ...]:
        """Return the lessons of the teacher's prompt, oldest first."""
        in_force = lessons.lessons_for(conn, self._context(policy, exchange), states=_IN_FORCE)
        beside = [lesson for lesson in in_force if lesson.id in plan.beside]
        targets = {lesson.id for lesson in plan.targets}
        identity = exchange.request.identity
        # The targets come first, not behind heavier ones that are learned.
        fitting = fitting_lessons(beside, capacity=lesson_capacity(conn, identity), first=targets)
        if self.check is not None:
            fitting = self.check.choose(conn, fitting, targets=targets, identity=identity)
        return tuple(fitting)

    def _make_prompt(
        self, conn: Connection, plan: PracticePlan, policy: str, exchange: Exchange
    ) -> PracticePrompt | None:
        """Return the prompt with the lessons that are in force for it; None without any, or if they do not fit in."""
        request = exchange.request
        # Token ids do not hold images, nor are they stored.
        if has_images(request.messages):
            return None
        applied = self._lessons_of(conn, plan, policy, exchange)
        if not applied:
            return None
        hint = lessons_hint(lesson.text for lesson in applied)
        opposed = self._opposed_wish(applied)
        if opposed is not None and self.check is not None:
            may_teach = self.check.accepts(conn, opposed, request.identity)
            if may_teach is None:
                return None
            if not may_teach:
                opposed = None
        contrast: tuple[str, Ids] | None = None
        try:
            plain_ids = self._render(request, None)
            hinted_ids = self._render(request, hint)
            if opposed is not None:
                contrast = opposed, self._render(request, opposed)
        except (ValueError, RequestError):
            return None
        longest = len(hinted_ids)
        if contrast is not None:
            longest = max(longest, len(contrast[1]))
        needed = longest + MAX_REPLY_TOKENS
        if self.context_length is not None and needed > self.context_length:
            return None
        return PracticePrompt(
            exchange=exchange,
            lessons=applied,
            hint=hint,
            plain_ids=plain_ids,
            hinted_ids=hinted_ids,
            contrast=contrast,
        )

    def _render(self, request: Request, hint: str | None) -> Ids:
        """Return the token ids of a request's prompt, with a hint or without one. Raises as `Renderer.render` does.

        Raises `ValueError` if no message can have the hint.
        """
        messages = request.messages
        if hint is not None:
            messages = with_hint(messages, hint, self.transient, self.renderer.hint_format)
        return self.renderer.render(messages, request.tools, variables=request.template).prompt_ids

    def _opposed_wish(self, applied: Sequence[Lesson]) -> str | None:
        """Return a wish that contradicts one of the lessons, as a hint; None if none is known."""
        topics = self.read_topics()
        for lesson in applied:
            wish = topics.opposed_hint(lesson.topic, lesson.text) if lesson.topic else None
            if wish:
                return lessons_hint([wish])
        return None

    def _context(self, policy: str, exchange: Exchange) -> PromptContext:
        """Return the context without the conversation: its lessons are not for the weights."""
        request = exchange.request
        return PromptContext(
            policy=policy,
            key=request.scope,
            agent=request.agent,
            user=request.user,
            question=question_hash(
                request.messages, self.transient, key=self.key, user=request.user
            ),
            asked=asked_text(request.messages, self.transient, self.read_topics().without_scopes),
        )


def _ids_and_texts(listed: Sequence[Lesson]) -> list[tuple[str, str]]:
    return [(lesson.id, lesson.text) for lesson in listed]


def _newest_prompts(
    conn: Connection, targets: Sequence[Lesson], identity: str, owner: OwnerFilter | None
) -> list[str]:
    """Return the newest turns of each person with one of the targets: others of the same agent may talk much more."""
    lesson_by_person = {(lesson.key, lesson.owner): lesson for lesson in targets}
    # Rounded up.
    limit = -(-MAX_PROMPTS // max(1, len(lesson_by_person)))
    # A dictionary keeps the order of the first mention.
    turns: dict[str, None] = {}
    for lesson in lesson_by_person.values():
        newest = practice_turns.newest_prompts(
            conn, lesson, identity=identity, limit=limit, owner=owner
        )
        turns |= dict.fromkeys(newest)
    return list(turns)


def _shuffled(
    prompts: Sequence[PracticePrompt], count: int, rng: random.Random
) -> list[PracticePrompt]:
    """Return at least `count` prompts: shuffled copies of all, one behind the other."""
    shuffled: list[PracticePrompt] = []
    while len(shuffled) < count:
        shuffled.extend(rng.sample(prompts, len(prompts)))
    return shuffled
