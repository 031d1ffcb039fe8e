"""Keep the lessons up to date with the verdicts: merge, reinforce and supersede them. Runs in the caller's transaction.

Lessons of one scope that contradict each other compete by weight. Each new piece of evidence halves the weight of the
lessons that it contradicts; then the heavier side is in force, and the newer one if they are equal. So one word is
enough to replace what was said once or twice, and two words replace what was said often. What is said again within a
few turns of a conversation counts half, and from the third time on a quarter: it may be meant for this conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from openclaw_rl.common.rules.lesson_topics import HintTopics, normalise_lesson
from openclaw_rl.judge.lessons.drafts import LessonDraft, draft_lessons
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.lessons import lessons, removal
from openclaw_rl.store.lessons.lessons import Lesson, LessonScope, LessonState
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Capture, Message, Request, Verdict

CONTRADICTION_FACTOR = 0.5
"""Share of a lesson's weight that remains when a turn contradicts it."""
REPEATED_SHARES = (1.0, 0.5, 0.25)
"""How much a turn counts whose conversation said the same 0, 1 or more times within the last few turns."""
MAX_KNOWN_LESSONS = 30
"""Newest lessons of an agent with which a model compares a new one."""
_WEIGHT_TOLERANCE = 1e-3  # of two weights that count as equal, as lessons age


def update_lessons(
    conn: Connection,
    verdict: Verdict,
    topics: HintTopics,
    *,
    per: PolicyOwner = "all",
    drafts: Sequence[LessonDraft] | None = None,
    is_ephemeral: Callable[[Message], bool],
    key: bytes,
) -> None:
    """Make a turn evidence of the lessons of its verdict, and of no other. Idempotent. Raises `DamagedRow`.

    `per`: who has a policy of its own, which learns the lesson. `drafts`: as a model read them; None: by the rules.
    `key`: of the hashes of questions. A redacted turn gives none, and a turn of an episode neither.
    """
    known = lessons.lessons_of_turns(conn, [verdict.turn])
    if drafts is None and (verdict.hints or any(vote.fact for vote in verdict.votes)):
        reaction = turns.current_reaction(conn, verdict.turn)
        drafts = draft_lessons(verdict, reaction.feedback if reaction else (), topics)
    kept: set[str] = set()
    if drafts and (exchange := exchanges.get(conn, verdict.turn)) is not None:
        request = exchange.request
        if request.capture is Capture.FULL and request.episode is None:
            question = question_hash(request.messages, is_ephemeral, key=key, user=request.user)
            kept = {_add_evidence(conn, draft, verdict, request, question, per) for draft in drafts}
    if gone := [lesson.id for lesson in known if lesson.id not in kept]:
        removal.remove_evidence(conn, [verdict.turn], at=verdict.at, only=gone, keep_pinned=True)


def known_lessons(conn: Connection, turn: str, per: PolicyOwner = "all") -> list[Lesson]:
    """Return the newest general lessons in the scope of a turn, in any state. Raises `DamagedRow`."""
    exchange = exchanges.get(conn, turn)
    if exchange is None:
        return []
    request = exchange.request
    found = lessons.lessons_in_scope(conn, _policy_of(request, per), request.scope, *_general_scope(request))
    return found[-MAX_KNOWN_LESSONS:]


def _general_scope(request: Request) -> tuple[LessonScope, str]:
    """Return the scope of a wish: the user, where the request names one, so that users of one key do not share it."""
    if request.user:
        return LessonScope.USER, lessons.user_scope(request.agent, request.user)
    return LessonScope.AGENT, request.agent


def _policy_of(request: Request, per: PolicyOwner) -> str:
    return policy_name(per, agent=request.agent, user=request.user, key=request.scope)


def _add_evidence(
    conn: Connection, draft: LessonDraft, verdict: Verdict, request: Request, question: str, per: PolicyOwner
) -> str:
    """Merge the draft with the lesson that says the same, or store it; return the lesson's id."""
    scope = _general_scope(request) if draft.is_general else (LessonScope.QUESTION, question)
    new = Lesson(
        id=lessons.new_lesson_id(),
        policy=_policy_of(request, per),
        key=request.scope,
        text=draft.text,
        topic=draft.topic,
        scope_kind=scope[0],
        scope_value=scope[1],
        weight=0.0,
        made_at=verdict.at,
        reinforced_at=verdict.at,
    )
    others = lessons.lessons_in_scope(conn, new.policy, new.key, new.scope_kind, new.scope_value)
    lesson = next((one for one in others if _is_same(draft, one)), None)
    if lesson is None:
        lessons.add_lesson(conn, new)
        lesson = new
    repeats = lessons.count_repeats(conn, lesson.id, verdict.turn)
    share = REPEATED_SHARES[min(repeats, len(REPEATED_SHARES) - 1)]
    if lessons.reinforce(conn, lesson.id, verdict.turn, weight=verdict.weight * share, at=verdict.at):
        rivals = [one for one in others if one.id != lesson.id and _is_contradicted(draft, lesson, one)]
        was_in_force = lesson is not new and lesson.state is not LessonState.SUPERSEDED
        if _settle(conn, lesson.id, rivals, share, verdict.at) and not was_in_force:
            events.append(conn, "lesson.made", lesson.id, {"turn": verdict.turn}, verdict.at)
    return lesson.id


def _is_same(draft: LessonDraft, lesson: Lesson) -> bool:
    if draft.same_as is not None:
        return lesson.id == draft.same_as
    same_topic = draft.topic != "" and draft.topic == lesson.topic
    return same_topic or normalise_lesson(draft.text) == normalise_lesson(lesson.text)


def _is_contradicted(draft: LessonDraft, lesson: Lesson, other: Lesson) -> bool:
    topic = lesson.topic or draft.topic
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
