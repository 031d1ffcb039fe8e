"""Keep the lessons up to date with the verdicts: merge, reinforce and supersede them. Runs in the caller's transaction.

Lessons of one scope that contradict each other compete by weight. Each new piece of evidence halves the weight of the
lessons that it contradicts; then the heavier side is in force, and the newer one if they are equal. So one word is
enough to replace what was said once or twice, and two words replace what was said often. What is said again within a
few turns of a conversation counts half, and from the third time on a quarter: it may be meant for this conversation.
A word that does not replace what was said often is a lesson for its own conversation meanwhile.

A wish of the rules that is said again in another language is the same lesson, in the newest words. A text that a person
has edited or pinned stays.

A lesson for this conversation, or about a subject, competes in its own scope. A newer wish for all prompts that
contradicts it ends it at once: it was said of this very prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from openclaw_rl.common.rules.lesson_topics import HintTopics, normalise_lesson
from openclaw_rl.common.rules.stated_scope import normalise_subject
from openclaw_rl.judge.lessons.drafts import LessonDraft, LessonReach, draft_lessons
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.lessons import conflicts, forgotten_wishes, lessons, removal
from openclaw_rl.store.lessons.edited_wishes import earlier_wishes, restate, wish_name
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import (
    LessonScope,
    PromptContext,
    asked_text,
    subject_scope,
    user_scope,
)
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Capture, Message, Request, Verdict

CONTRADICTION_FACTOR = 0.5
"""Share of a lesson's weight that remains when a turn contradicts it."""
REPEATED_SHARES = (1.0, 0.5, 0.25)
"""How much a turn counts whose conversation said the same 0, 1 or more times within the last few turns."""
MAX_KNOWN_LESSONS = 30
"""Newest lessons of a person and a conversation with which a model compares a new one."""
# Of two weights that count as equal, as lessons age.
_WEIGHT_TOLERANCE = 1e-3


def update_lessons(
    conn: Connection,
    verdict: Verdict,
    topics: HintTopics,
    *,
    per: PolicyOwner = "all",
    drafts: Sequence[LessonDraft] | None = None,
    is_shared: bool = True,
    is_ephemeral: Callable[[Message], bool],
    key: bytes,
) -> None:
    """Make a turn evidence of the lessons of its verdict, and of no other. Idempotent. Raises `DamagedRow`.

    `per`: who has a policy of its own, which learns the lesson. `drafts`: as a model read them; None: by the rules.
    `is_shared`: whether a new lesson may reach others than its person. `key`: of the hashes of questions. A redacted
    turn gives none, and a turn of an episode or an imported one neither: no prompt has the key of imported turns.
    """
    known = lessons.lessons_of_turns(conn, [verdict.turn])
    if drafts is None and (verdict.hints or any(vote.fact for vote in verdict.votes)):
        drafts = draft_lessons(verdict, turns.current_reaction(conn, verdict.turn), topics)
    remembered = []
    for draft in drafts or ():
        if not forgotten_wishes.is_forgotten(conn, verdict.turn, draft.topic, draft.text):
            remembered.append(draft)
    supported: set[str] = set()
    exchange = exchanges.get(conn, verdict.turn) if remembered else None
    if exchange is not None and _gives_lessons(exchange.request):
        place = _TurnPlace.of_turn(
            conn,
            verdict.turn,
            exchange.request,
            is_ephemeral,
            topics,
            key=key,
            per=per,
            is_shared=is_shared,
        )
        for draft in remembered:
            supported |= set(_add_evidence(conn, draft, verdict, place))
    unsupported = [lesson.id for lesson in known if lesson.id not in supported]
    if unsupported:
        removal.remove_evidence(
            conn, [verdict.turn], at=verdict.at, only=unsupported, keep_pinned=True
        )


def _gives_lessons(request: Request) -> bool:
    is_readable = request.capture is Capture.FULL
    return is_readable and request.episode is None and request.origin is None


def known_lessons(conn: Connection, turn: str, per: PolicyOwner = "all") -> list[Lesson]:
    """Return the newest lessons that a turn may repeat or contradict, in any state. Raises `DamagedRow`.

    Those are the general ones of its person, and those of its conversation.
    """
    exchange = exchanges.get(conn, turn)
    stored = turns.get(conn, turn)
    if exchange is None:
        return []
    request = exchange.request
    owner = _policy_of(request, per), request.scope
    known = lessons.lessons_in_scope(conn, *owner, *_general_scope(request))
    if stored is not None:
        known += lessons.lessons_in_scope(conn, *owner, LessonScope.SESSION, stored.session)
    return sorted(known, key=lambda lesson: lesson.made_at)[-MAX_KNOWN_LESSONS:]


def _general_scope(request: Request) -> tuple[LessonScope, str]:
    """Return the scope of a wish: the user, where the request names one, so that users of one key do not share it."""
    if request.user:
        return LessonScope.USER, user_scope(request.agent, request.user)
    return LessonScope.AGENT, request.agent


def _policy_of(request: Request, per: PolicyOwner) -> str:
    return policy_name(per, agent=request.agent, user=request.user, key=request.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnPlace:
    """The request of a turn, and what the prompts of its lessons have in common with it."""

    request: Request
    context: PromptContext
    topics: HintTopics
    is_shared: bool

    @classmethod
    def of_turn(
        cls,
        conn: Connection,
        turn: str,
        request: Request,
        is_ephemeral: Callable[[Message], bool],
        topics: HintTopics,
        *,
        key: bytes,
        per: PolicyOwner,
        is_shared: bool,
    ) -> _TurnPlace:
        stored = turns.get(conn, turn)
        context = PromptContext(
            policy=_policy_of(request, per),
            key=request.scope,
            agent=request.agent,
            user=request.user,
            question=question_hash(request.messages, is_ephemeral, key=key, user=request.user),
            sessions=(stored.session,) if stored is not None else (),
            asked=asked_text(request.messages, is_ephemeral, topics.without_scopes),
        )
        return cls(request=request, context=context, topics=topics, is_shared=is_shared)

    def scope_of(self, draft: LessonDraft) -> tuple[LessonScope, str]:
        """Return the scope of a lesson from this turn, and its value."""
        match draft.reach:
            case LessonReach.SESSION if self.context.sessions:
                return LessonScope.SESSION, self.context.sessions[0]
            case LessonReach.SUBJECT if normalise_subject(draft.subject):
                return LessonScope.SUBJECT, subject_scope(
                    self.request.agent, self.request.user, draft.subject
                )
            case LessonReach.QUESTION:
                return LessonScope.QUESTION, self.context.question
            case _:
                return _general_scope(self.request)


def _add_evidence(
    conn: Connection, draft: LessonDraft, verdict: Verdict, place: _TurnPlace
) -> set[str]:
    """Merge the draft with the lesson that says the same, or store it; return the lesson's id.

    If a heavier lesson for all prompts contradicts it, it becomes one for its conversation as well, unless that one is
    pinned, and so stays in the prompt. Return both ids.
    """
    scope = place.scope_of(draft)
    new = Lesson(
        id=lessons.new_lesson_id(),
        policy=place.context.policy,
        key=place.context.key,
        text=draft.text,
        topic=draft.topic,
        scope_kind=scope[0],
        scope_value=scope[1],
        weight=0.0,
        made_at=verdict.at,
        reinforced_at=verdict.at,
        is_shared=place.is_shared,
    )
    others = lessons.lessons_in_scope(conn, new.policy, new.key, new.scope_kind, new.scope_value)
    lesson = _find_edited(conn, draft, verdict.turn, others) or _find_same(draft, others)
    if lesson is None:
        lessons.add_lesson(conn, new)
        lesson = new
    if not lesson.is_practised:
        conflicts.record_conflicts(conn, lesson.id, draft.contradicts)
    repeats = lessons.count_repeats(conn, lesson.id, verdict.turn)
    share = REPEATED_SHARES[min(repeats, len(REPEATED_SHARES) - 1)]
    if lessons.reinforce(
        conn,
        lesson.id,
        verdict.turn,
        weight=verdict.weight * share,
        at=verdict.at,
        words=draft.words,
    ):
        if lesson is not new:
            lesson = _in_newest_words(conn, lesson, draft, place.topics, verdict.at)
        rivals = [
            one for one in others if one.id != lesson.id and _is_contradicted(draft, lesson, one)
        ]
        was_in_force = lesson.id != new.id and lesson.state is not LessonState.SUPERSEDED
        if _settle(conn, lesson.id, rivals, share, verdict.at):
            if not was_in_force:
                events.append(
                    conn, lessons.MADE_EVENT, lesson.id, {"turn": verdict.turn}, verdict.at
                )
            _end_narrower(conn, draft, lesson, place, verdict.at)
        elif place.context.sessions and _would_hold_here(lesson, rivals):
            here = replace(
                _draft_for_session(draft, lesson), contradicts=tuple(one.id for one in rivals)
            )
            return {lesson.id} | _add_evidence(conn, here, verdict, place)
        return {lesson.id}
    here = _draft_for_session(draft, lesson)
    of_sessions = [
        one
        for session in place.context.sessions
        for one in lessons.lessons_in_scope(conn, new.policy, new.key, LessonScope.SESSION, session)
    ]
    same = (one for one in of_sessions if _is_same(here, one) or _is_same(draft, one))
    edited = _find_edited(conn, draft, verdict.turn, of_sessions)
    return {lesson.id} | {one.id for one in same} | ({edited.id} if edited is not None else set())


def _in_newest_words(
    conn: Connection, lesson: Lesson, draft: LessonDraft, topics: HintTopics, at: float
) -> Lesson:
    """Return the lesson with the words of a later draft about its topic, if both are hints of the rules."""
    is_other_text = lesson.topic == draft.topic and lesson.text != draft.text
    is_later = at >= lesson.reinforced_at
    if not is_other_text or not is_later:
        return lesson
    if not topics.has_hint(lesson.text) or not topics.has_hint(draft.text):
        return lesson
    return restate(conn, lesson, draft.text)


def _draft_for_session(draft: LessonDraft, lesson: Lesson) -> LessonDraft:
    return LessonDraft(
        text=lesson.text,
        reach=LessonReach.SESSION,
        topic=_topic_of(draft, lesson),
        words=draft.words,
    )


def _would_hold_here(lesson: Lesson, rivals: Sequence[Lesson]) -> bool:
    """Return whether a lesson for this conversation would take the place of all these in its prompts."""
    in_force = [one for one in rivals if one.state is not LessonState.SUPERSEDED]
    return lesson.is_practised and not any(one.is_pinned for one in in_force)


def _topic_of(draft: LessonDraft, lesson: Lesson) -> str:
    return lesson.topic or draft.topic


def _end_narrower(
    conn: Connection, draft: LessonDraft, lesson: Lesson, place: _TurnPlace, at: float
) -> None:
    """Supersede what was said of this conversation, or of its subject, and contradicts a newer wish for all prompts."""
    if not lesson.is_practised:
        return
    # One of them may have overruled the next.
    while ended := _contradicted_narrower(conn, draft, lesson, place):
        for other in ended:
            lessons.supersede(conn, other.id, lesson.id)
            events.append(conn, lessons.SUPERSEDED_EVENT, other.id, {"by": lesson.id}, at)


def _contradicted_narrower(
    conn: Connection, draft: LessonDraft, lesson: Lesson, place: _TurnPlace
) -> list[Lesson]:
    in_prompt = lessons.lessons_for(conn, place.context)
    narrower = [one for one in in_prompt if not one.is_practised and not one.is_pinned]
    known = conflicts.conflicts_among(conn, [lesson.id, *(one.id for one in narrower)])
    out = []
    for other in narrower:
        is_known = frozenset((lesson.id, other.id)) in known
        if is_known or _is_contradicted(draft, lesson, other):
            out.append(other)
    return out


def _find_edited(
    conn: Connection, draft: LessonDraft, turn: str, others: Sequence[Lesson]
) -> Lesson | None:
    """Return the lesson that a turn gave with the words of a draft, and that a person has edited since."""
    wish = wish_name(draft.topic, draft.text)
    of_turn = {one.id for one in lessons.lessons_of_turns(conn, [turn])}
    return next(
        (one for one in others if one.id in of_turn and wish in earlier_wishes(conn, one.id)), None
    )


def _find_same(draft: LessonDraft, others: Sequence[Lesson]) -> Lesson | None:
    """Return the lesson that says the same as a draft: the one that the model named, if it is still among them."""
    named = next((one for one in others if one.id == draft.same_as), None)
    return named or next((one for one in others if _is_same(draft, one)), None)


def _is_same(draft: LessonDraft, lesson: Lesson) -> bool:
    same_topic = draft.topic != "" and draft.topic == lesson.topic
    return same_topic or normalise_lesson(draft.text) == normalise_lesson(lesson.text)


def _is_contradicted(draft: LessonDraft, lesson: Lesson, other: Lesson) -> bool:
    topic = _topic_of(draft, lesson)
    subject = topic.partition("/")[0]
    by_topic = subject != "" and subject == other.topic.partition("/")[0] and topic != other.topic
    return by_topic or other.id in draft.contradicts


def _settle(conn: Connection, id: str, rivals: Sequence[Lesson], share: float, at: float) -> bool:
    """Weaken the rivals of a lesson, and decide which side is in force. Returns whether the lesson is.

    `share`: how much the turn counts.
    """
    remaining = CONTRADICTION_FACTOR**share
    lesson = lessons.get(conn, id)
    assert lesson is not None, f"lesson {id} was just written"
    in_force = [rival for rival in rivals if rival.state is not LessonState.SUPERSEDED]
    for rival in rivals:
        lessons.set_weight(conn, rival.id, rival.weight_at(at) * remaining, at=at)
    strongest = max(in_force, key=lambda one: (one.is_pinned, one.weight_at(at)), default=None)
    if strongest is not None and not lesson.is_pinned:
        bound = strongest.weight_at(at) * remaining
        if strongest.is_pinned or bound > lesson.weight_at(at) + _WEIGHT_TOLERANCE:
            lessons.supersede(conn, lesson.id, strongest.id)
            return False
    for rival in in_force:
        if not rival.is_pinned:
            lessons.supersede(conn, rival.id, lesson.id)
            events.append(conn, lessons.SUPERSEDED_EVENT, rival.id, {"by": lesson.id}, at)
    if lesson.state is LessonState.SUPERSEDED:
        lessons.mark_active(conn, lesson.id)
    return True
