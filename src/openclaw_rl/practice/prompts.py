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
from openclaw_rl.types import Exchange, Ids, Policy

MAX_PROMPTS = 128
"""Newest prompts that are asked again, in equal shares of the people whose lessons are practised."""
MAX_REPLY_TOKENS = 256
_IN_FORCE = (LessonState.ACTIVE, LessonState.LEARNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticePrompt:
    """An earlier prompt, with all lessons that apply to it. `plain_ids` [P], `hinted_ids` [P + hint].

    `contrast`: what contradicts one of the lessons, and the prompt with it instead; None if nothing is known to.
    """

    exchange: Exchange
    lessons: tuple[Lesson, ...]
    hint: str
    plain_ids: Ids
    hinted_ids: Ids
    contrast: tuple[str, Ids] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSelector:
    """Selects prompts to which a lesson applies that the weights have not learned."""

    renderer: Renderer
    transient: EphemeralMatcher
    key: bytes  # of the hashes of questions
    read_topics: Callable[[], HintTopics]  # read when they are needed, as a trainer that starts has no time
    context_length: int | None = None  # tokens of prompt and reply; None: not limited
    check: TeachingCheck | None = None  # None: every lesson teaches, examined or not

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

        `rehearsal_share`: of the prompts, whose question is replaced by one that nobody asked.

        Each lesson gets an equal share of the prompts, each prompt comes once before any comes again, and the order
        depends on the seed alone.
        """
        rng = random.Random(seed)
        by_lesson: dict[str, list[PracticePrompt]] = {lesson.id: [] for lesson in plan.targets}
        ids = _newest_prompts(conn, plan.targets, head.identity, owner)
        found = exchanges.get_readable(conn, ids)  # sorted by id, and so in a random order
        for exchange in (found[id_] for id_ in ids if id_ in found):
            made = self._make_prompt(conn, plan, head.name, exchange)
            for lesson in made.lessons if made is not None else ():
                if made is not None and lesson.id in by_lesson:
                    by_lesson[lesson.id].append(made)
        decks = [_shuffled(prompts, count, rng) for prompts in by_lesson.values() if prompts]
        if not decks:
            return []
        chosen = [decks[i % len(decks)][i // len(decks)] for i in range(count)]
        places = rehearsed_places(count, rehearsal_share, rng)
        for place in sorted(places):
            question = rng.choice(rehearsal_questions())
            rehearsed = self._make_prompt(conn, plan, head.name, ask_instead(chosen[place].exchange, question))
            # None if the lesson is not examined, or the template rejects the messages: the person's prompt stays.
            if rehearsed is not None:
                chosen[place] = rehearsed
        return chosen

    def has_current_lessons(
        self, conn: Connection, plan: PracticePlan, policy: str, prompts: Sequence[PracticePrompt]
    ) -> bool:
        """Return whether the lessons of all these prompts, and their texts, are still those of the plan."""
        distinct = {(prompt.exchange.request.id, prompt.plain_ids.tobytes()): prompt for prompt in prompts}
        for prompt in distinct.values():
            now = self._lessons_of(conn, plan, policy, prompt.exchange)
            if [(one.id, one.text) for one in now] != [(one.id, one.text) for one in prompt.lessons]:
                return False
        return True

    def _lessons_of(self, conn: Connection, plan: PracticePlan, policy: str, exchange: Exchange) -> tuple[Lesson, ...]:
        """Return the lessons of the teacher's prompt, oldest first."""
        in_force = lessons.lessons_for(conn, self._context(policy, exchange), states=_IN_FORCE)
        beside, targets = [lesson for lesson in in_force if lesson.id in plan.beside], {one.id for one in plan.targets}
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
        if has_images(request.messages):  # token ids do not hold them, nor are they stored
            return None
        if not (found := self._lessons_of(conn, plan, policy, exchange)):
            return None
        hint = lessons_hint(lesson.text for lesson in found)
        opposed = self._opposed_wish(found)
        if opposed is not None and self.check is not None:
            may_teach = self.check.accepts(conn, opposed, request.identity)
            if may_teach is None:
                return None
            opposed = opposed if may_teach else None
        try:
            plain_ids, hinted_ids, *others = (
                self.renderer.render(messages, request.tools, variables=request.template).prompt_ids
                for messages in (
                    request.messages,
                    *(
                        with_hint(request.messages, text, self.transient, self.renderer.hint_format)
                        for text in (hint, opposed)
                        if text
                    ),
                )
            )
        except (ValueError, RequestError):
            return None
        longest = max(len(hinted_ids), *map(len, others)) if others else len(hinted_ids)
        if self.context_length is not None and longest + MAX_REPLY_TOKENS > self.context_length:
            return None
        return PracticePrompt(
            exchange=exchange,
            lessons=found,
            hint=hint,
            plain_ids=plain_ids,
            hinted_ids=hinted_ids,
            contrast=(opposed, others[0]) if opposed else None,
        )

    def _opposed_wish(self, found: Sequence[Lesson]) -> str | None:
        """Return a wish that contradicts one of the lessons, as it would stand in a prompt."""
        topics = self.read_topics()
        wishes = (topics.opposed_hint(lesson.topic, lesson.text) for lesson in found if lesson.topic)
        return next((lessons_hint([wish]) for wish in wishes if wish), None)

    def _context(self, policy: str, exchange: Exchange) -> PromptContext:
        """Return the context without the conversation: its lessons are not for the weights."""
        request = exchange.request
        return PromptContext(
            policy=policy,
            key=request.scope,
            agent=request.agent,
            user=request.user,
            question=question_hash(request.messages, self.transient, key=self.key, user=request.user),
            asked=asked_text(request.messages, self.transient, self.read_topics().without_scopes),
        )


def _newest_prompts(conn: Connection, targets: Sequence[Lesson], identity: str, owner: OwnerFilter | None) -> list[str]:
    """Return the newest turns of each person with one of the targets: others of the same agent may talk much more."""
    people = {(lesson.key, lesson.owner): lesson for lesson in targets}
    limit = -(-MAX_PROMPTS // max(1, len(people)))
    found = (
        practice_turns.newest_prompts(conn, of, identity=identity, limit=limit, owner=owner) for of in people.values()
    )
    return list(dict.fromkeys(turn for turns in found for turn in turns))


def _shuffled(prompts: Sequence[PracticePrompt], count: int, rng: random.Random) -> list[PracticePrompt]:
    """Return at least `count` prompts: shuffled copies of all, one behind the other."""
    out: list[PracticePrompt] = []
    while len(out) < count:
        out.extend(rng.sample(prompts, len(prompts)))
    return out
