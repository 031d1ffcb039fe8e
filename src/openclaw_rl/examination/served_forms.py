"""Put a question into a prompt as people are served: with their lessons, system message and template variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.examination.lesson_choice import LessonSet, choose_lessons
from openclaw_rl.render.hint import HintFormat, lessons_hint, with_hint
from openclaw_rl.store.lessons import examinations
from openclaw_rl.store.lessons.examinations import ExaminationResult, lesson_capacity
from openclaw_rl.store.lessons.fitting import fitting_lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState, lessons_for
from openclaw_rl.store.lessons.scopes import PromptContext
from openclaw_rl.store.lineage.newest_turns import newest_exchanges
from openclaw_rl.store.lineage.policy_names import OwnerFilter
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Exchange, Message, Request

MAX_SYSTEM_CHARS = 2_000
"""A longer system message is left out: it would be most of what every answer costs."""
NEWEST_TURNS = 64
"""Newest turns of a policy among which people are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedForm:
    """A person's prompts without the question. `lessons`: the texts of lessons, in the order of the prompt."""

    lessons: tuple[str, ...] = ()
    system: Message | None = None
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether the question is the whole prompt."""
        return not self.lessons and self.system is None and not self.template

    @property
    def name(self) -> str:
        """A short digest, which differs for every other form."""
        parts = to_json([self.lessons, self.system, dict(self.template)])
        return blake2b(parts, digest_size=4).hexdigest()

    def messages(self, question: str, hint_format: HintFormat) -> list[Message]:
        """Return the conversation that asks a question in this form. `hint_format`: of the model."""
        messages: list[Message] = [] if self.system is None else [self.system]
        messages.append({"role": "user", "content": question})
        if not self.lessons:
            return messages
        return with_hint(messages, lessons_hint(self.lessons), lambda message: False, hint_format)


def newest_forms(
    conn: Connection,
    policy: str,
    *,
    owner: OwnerFilter | None,
    mode: str,
    identity: str,
    key: bytes,
    limit: int,
) -> list[ServedForm]:
    """Return how the people who talked to a policy last are asked, newest first, without plain forms and repetitions.

    `owner`: whose turns the policy answers. `mode`: `serve.lessons`. `identity`: of the base; `key`: of the digests of
    lessons. At most `limit` people.
    """
    people: dict[tuple[str, str, str], Exchange] = {}
    for exchange in newest_exchanges(conn, owner, NEWEST_TURNS):
        request = exchange.request
        people.setdefault((request.scope, request.agent, request.user), exchange)
        if len(people) == limit:
            break
    forms: dict[str, ServedForm] = {}
    for exchange in people.values():
        form = _form_of(conn, policy, exchange.request, mode=mode, identity=identity, key=key)
        if not form.is_plain:
            forms[form.name] = form
    return list(forms.values())


def _form_of(
    conn: Connection, policy: str, request: Request, *, mode: str, identity: str, key: bytes
) -> ServedForm:
    form = ServedForm(system=_system_message(request), template=request.template)
    if mode == "off":
        return form
    context = PromptContext(
        policy=policy, key=request.scope, agent=request.agent, user=request.user
    )
    return replace(
        form, lessons=_lessons_in_force(conn, context, mode=mode, identity=identity, key=key)
    )


def _system_message(request: Request) -> Message | None:
    """Return the system message of a request; None without one, or if it is too long."""
    if not request.messages:
        return None
    first = request.messages[0]
    if first.get("role") not in ("system", "developer"):
        return None
    return first if len(message_text(first)) <= MAX_SYSTEM_CHARS else None


def _served_lessons(conn: Connection, context: PromptContext, mode: str) -> list[Lesson]:
    """Return the general lessons that apply to a person's prompts, before the limit of their number."""
    states = tuple(state for state in LessonState if state is not LessonState.SUPERSEDED)
    served = []
    for lesson in lessons_for(conn, context, states=states):
        if lesson.is_examined and _is_served(lesson, mode):
            served.append(lesson)
    return served


def _lessons_in_force(
    conn: Connection, context: PromptContext, *, mode: str, identity: str, key: bytes
) -> tuple[str, ...]:
    """Return the texts of the general lessons in a person's prompts."""
    served = _served_lessons(conn, context, mode)
    fitting = fitting_lessons(served, capacity=lesson_capacity(conn, identity))
    newest = max((lesson.reinforced_at for lesson in fitting), default=0.0)

    def order(place: int) -> tuple[bool, float]:
        return fitting[place].is_pinned, fitting[place].weight_at(newest)

    def find_result(places: LessonSet) -> ExaminationResult | None:
        texts = [fitting[place].text for place in places]
        digest = examinations.lessons_digest(texts, identity, key)
        return examinations.find_result(conn, digest, policy=context.policy)

    leaving_order = sorted(range(len(fitting)), key=order)
    choice = choose_lessons(leaving_order, find_result)
    in_force = []
    for place, lesson in enumerate(fitting):
        if lesson.is_pinned or place in choice.chosen:
            in_force.append(lesson.text)
    return tuple(in_force)


def _is_served(lesson: Lesson, mode: str) -> bool:
    if lesson.is_pinned or lesson.state is LessonState.ACTIVE:
        return True
    return lesson.state is LessonState.LEARNED and mode == "always"
