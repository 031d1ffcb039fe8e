"""Scopes of lessons: an agent, a user, a subject, a conversation or one question; and which prompts are in scope."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import hashed_text
from openclaw_rl.common.rules.stated_scope import names_subject, normalise_subject
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.types import Message

MAX_ASKED_MESSAGES = 3
MAX_ASKED_CHARS = 4_096
"""Newest user messages in which a subject is searched, and characters of each."""


class LessonScope(StrEnum):
    """Kind of what a lesson is for.

    Agent: all its prompts, `scope_value` is its name. User: prompts of one user of an agent (`user_scope`). Subject:
    those of an agent or its user that name the subject (`subject_scope`). Session: prompts of the conversation with
    this id. Question: prompts whose last user message has the hash `scope_value`.
    """

    AGENT = "agent"
    USER = "user"
    SUBJECT = "subject"
    SESSION = "session"
    QUESTION = "question"


PRACTISED_SCOPES = (LessonScope.AGENT, LessonScope.USER)
"""Scopes whose lessons get into the weights. The others stay in their prompts.

The weights know no conversations. Steps on one prompt change replies to others, and a divergence per token hardly shows
the few tokens of a fact.
"""
_RANKS = {LessonScope.AGENT: 0, LessonScope.USER: 1, LessonScope.SUBJECT: 2, LessonScope.SESSION: 2}


def scope_rank(scope: LessonScope) -> int:
    """Return how narrow a scope is. Of two lessons about the same, the narrower one counts, else the newer one."""
    return _RANKS.get(scope, len(_RANKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptContext:
    """Owner and place of a prompt, which decide the lessons for it.

    `question`: hash of its last user message. `sessions`: its conversation, and those that it continues. `asked`: what
    its newest user messages say (`asked_text`).
    """

    policy: str = DEFAULT_NAME
    key: str = ""
    agent: str = ""
    user: str = ""
    question: str = ""
    sessions: tuple[str, ...] = ()
    asked: str = ""

    def bound_values(self) -> dict[str, Any]:
        """Return the values of the parameters of `in_scope`."""
        return {
            "policy": self.policy,
            "key": self.key,
            "agent": self.agent,
            "user": user_scope(self.agent, self.user),
            "question": self.question,
            "sessions": list(self.sessions),
        }

    def is_about(self, kind: LessonScope, value: str, *, is_shared: bool = True) -> bool:
        """Return whether a lesson of this scope is for the prompt, among those of `in_scope`.

        One that is not shared, of requests without a user, is for such prompts alone; one about a subject is for
        prompts about it.
        """
        owner = scope_owner(kind, value)
        if kind is LessonScope.AGENT:
            return is_shared or not self.user
        if kind is not LessonScope.SUBJECT:
            return True
        owners = [(self.agent, self.user)]
        if is_shared:
            owners.append((self.agent, ""))
        return owner in owners and names_subject(self.asked, scope_subject(kind, value))


def in_scope() -> ColumnElement[bool]:
    """Return the condition that a lesson may be for a prompt, of which only the agent may have no name.

    Lessons about a subject are all among them: `PromptContext.is_about` decides.
    """
    kind = t.lessons.c.scope_kind
    value = t.lessons.c.scope_value
    named = (LessonScope.AGENT, LessonScope.USER, LessonScope.QUESTION)
    return or_(
        *(and_(kind == scope.value, value == bindparam(scope.value)) for scope in named),
        and_(kind == LessonScope.SESSION.value, value.in_(bindparam("sessions", expanding=True))),
        kind == LessonScope.SUBJECT.value,
    ) & ((kind == LessonScope.AGENT.value) | (value != ""))


_of_sessions = (
    t.lessons.c.policy == bindparam("policy"),
    t.lessons.c.key == bindparam("key"),
    t.lessons.c.scope_kind == LessonScope.SESSION.value,
)
_has_session_lessons = select(select(t.lessons.c.id).where(*_of_sessions).exists())
_child = t.turns.alias()
_asked_next = t.exchanges.alias()
_next = select(_child.c.id).where(
    _child.c.scope == t.turns.c.scope,
    _child.c.session == t.turns.c.session,
    _child.c.parent == t.turns.c.id,
)
_is_in_history = _asked_next.c.context_chain.in_(bindparam("chains", expanding=True))
_sessions_of_history = (
    select(t.lessons.c.scope_value)
    .join(t.lesson_turns, t.lesson_turns.c.lesson == t.lessons.c.id)
    .join(t.turns, t.turns.c.id == t.lesson_turns.c.turn)
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(
        *_of_sessions,
        t.exchanges.c.user == bindparam("user"),
        t.exchanges.c.reply_chain.in_(bindparam("chains", expanding=True)),
        or_(
            ~_next.exists(),
            _next.join(_asked_next, _asked_next.c.seq == _child.c.seq)
            .where(_is_in_history)
            .exists(),
        ),
    )
    .distinct()
)


def sessions_of_history(
    conn: Connection, context: PromptContext, chains: Callable[[], Sequence[bytes]]
) -> list[str]:
    """Return the conversations with lessons of their own whose wishes occur in a history: the reply, and what follows.

    Two conversations may begin with the same words, also of two users: only those of the prompt's user are found.
    `chains` returns the chained hashes of the history's messages; it is called only if there are such lessons.
    """
    of = {"policy": context.policy, "key": context.key}
    if not conn.execute(_has_session_lessons, of).scalar_one():
        return []
    values = {**of, "user": context.user, "chains": list(chains())}
    return list(conn.execute(_sessions_of_history, values).scalars())


def user_scope(agent: str, user: str) -> str:
    """Return the scope value of a user of an agent; "" without a user."""
    return json.dumps([agent, user], ensure_ascii=False) if user else ""


def subject_scope(agent: str, user: str, subject: str) -> str:
    """Return the scope value of a subject, for an agent or one of its users."""
    return json.dumps([agent, user, normalise_subject(subject)], ensure_ascii=False)


def is_readable_scope(kind: str, value: str) -> bool:
    """Return whether a stored scope has the form that `user_scope` and `subject_scope` write."""
    if not isinstance(value, str) or kind not in tuple(LessonScope):
        return False
    length = _SCOPE_LENGTHS.get(kind)
    if length is None:
        return True
    try:
        parts = json.loads(value)
    except (ValueError, RecursionError):
        return False
    is_list = isinstance(parts, list) and len(parts) == length
    return is_list and all(isinstance(part, str) for part in parts)


_SCOPE_LENGTHS: Mapping[str, int] = {LessonScope.USER: 2, LessonScope.SUBJECT: 3}
"""Kind of scope whose value is a list in JSON -> its length."""


def scope_owner(kind: str, value: str) -> tuple[str, str]:
    """Return the (agent, user) of a scope, "" for any user; of a session and of a question, two empty names."""
    if kind in (LessonScope.USER, LessonScope.SUBJECT):
        agent, user, *_ = json.loads(value)
        return agent, user
    return (value, "") if kind == LessonScope.AGENT else ("", "")


def scope_subject(kind: str, value: str) -> str:
    """Return the subject of a scope, as `normalise_subject` writes it; "" for a scope without one."""
    return str(json.loads(value)[2]) if kind == LessonScope.SUBJECT else ""


def asked_text(
    messages: Sequence[Message],
    is_ephemeral: Callable[[Message], bool],
    without_scopes: Callable[[str], str],
) -> str:
    """Return what the newest user messages say, in which a subject is searched.

    `without_scopes` leaves out "when I ask about money", which is no question about money.
    """
    asked: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "user" or is_ephemeral(message):
            continue
        text = head_and_tail(hashed_text(message), MAX_ASKED_CHARS)
        asked.append(without_scopes(text))
        if len(asked) == MAX_ASKED_MESSAGES:
            break
    return "\n".join(asked)
