"""Finds the reply that feedback is on by what its client knows: the text shown, session, user, or its own message id.

A text is looked up by its hash first. Programs that show a reply also change it: markup is rendered or escaped, tool
calls are shown beside it, long texts are cut. So letters and digits alone are compared next, and then whether one text
contains the other. Both compare the newest replies only.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, hash_session, own_hash, visible_text
from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import schema as t
from openclaw_rl.store.feedback.records import in_session
from openclaw_rl.store.rows import message_from_json, naming_damage
from openclaw_rl.types import ExchangeStatus, Kind

MAX_CANDIDATES = 64
"""Newest replies among which one is chosen."""
COMPARED_REPLIES = 500
"""Newest replies whose text is compared where no reply has the hash."""
_NO_LETTERS = re.compile(r"[\W_]+")
# Slack and Discord write links, people and channels in angle brackets, a link with its label.
_BRACKETS = re.compile(r"<(?:[^<>|\s]+\|)?([^<>]*)>")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]\n]*)\]\([^()\s]*\)")


class MatchField(StrEnum):
    """A field that distinguishes replies."""

    CLIENT_MESSAGE_ID = "client_message_id"
    SESSION = "session"
    USER = "user"
    TEXT = "text"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMatch:
    """The properties of a reply that a client knows; None: unknown."""

    text: str | None = None
    session: str | None = None
    user: str | None = None
    client_message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundReply:
    """A reply that fits."""

    id: str
    session: str
    user: str
    client_message_id: str | None
    admitted_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """Result of a search: `reply`, or several `candidates` (newest first) and what would distinguish them, or nothing.

    `without_text`: number of replies that fit everything but the text, if there was one.
    """

    reply: FoundReply | None = None
    candidates: tuple[FoundReply, ...] = ()
    distinguished_by: tuple[MatchField, ...] = ()
    without_text: int = 0


def match_reply(conn: Connection, scope: str, wanted: ReplyMatch, secret: bytes) -> MatchResult:
    """Find the reply in the scope. `secret`: key of the message hashes.

    Replies that differ in nothing but their text and their step are one message of the client if it gave them one id:
    the newest counts. Without a text the newest reply counts. With one, several are ambiguous. Main traffic counts
    before side traffic.
    """
    if wanted.text is None:
        found = _prefer_main(conn.execute(_replies(scope, wanted).limit(MAX_CANDIDATES)).all())
        return _choose_newest(found, wanted)
    rows = _with_text(conn, scope, wanted, wanted.text, secret)
    if not rows:
        fitting = conn.execute(_replies(scope, wanted).limit(MAX_CANDIDATES)).all()
        is_narrowed = wanted != ReplyMatch(text=wanted.text)
        return MatchResult(without_text=len(fitting) if is_narrowed else 0)
    return _choose_only(_prefer_main(rows))


def _with_text(
    conn: Connection, scope: str, wanted: ReplyMatch, text: str, secret: bytes
) -> Sequence[Row[Any]]:
    """Return the replies with a text, newest first: by the first of three ways that finds any."""
    hashed = own_hash({"role": "assistant", "content": text}, secret)
    by_hash = _replies(scope, wanted).where(t.exchanges.c.reply_own == hashed)
    rows = conn.execute(by_hash.limit(MAX_CANDIDATES)).all()
    letters = _letters(text)
    if rows or not letters:
        return rows
    same = []
    containing = []
    shown = _replies(scope, wanted).add_columns(t.replies.c.message)
    shown = shown.join(t.replies, t.replies.c.seq == t.exchanges.c.seq)
    shown = shown.where(t.replies.c.message.is_not(None))
    for row in conn.execute(shown.limit(COMPARED_REPLIES)):
        with contextlib.suppress(DamagedRow), naming_damage(row.id, "reply"):
            reply = _letters(visible_text(message_from_json(row.message)))
            if reply == letters:
                same.append(row)
            elif min(len(reply), len(letters)) >= DISTINCTIVE_CHARS and (
                reply in letters or letters in reply
            ):
                containing.append(row)
    return same or containing


def _letters(text: str) -> str:
    """Return the letters and digits of a text as it is shown, in one case."""
    text = _MARKDOWN_LINK.sub(r"\1", _BRACKETS.sub(r"\1", text))
    return _NO_LETTERS.sub("", html.unescape(text)).casefold()


def _replies(scope: str, wanted: ReplyMatch) -> Select[Any]:
    """Return the query of finished replies to which everything but the text fits, newest first."""
    conditions: list[ColumnElement[bool]] = [
        t.exchanges.c.scope == scope,
        t.exchanges.c.status.in_((ExchangeStatus.DONE.value, ExchangeStatus.CANCELLED.value)),
        t.turns.c.kind != Kind.PRACTICE.value,
    ]
    if wanted.session is not None:
        conditions.append(in_session(wanted.session))
    if wanted.user is not None:
        conditions.append(t.exchanges.c.user == wanted.user)
    if wanted.client_message_id is not None:
        names = [wanted.client_message_id, hash_session(wanted.client_message_id)]
        conditions.append(t.exchanges.c.client_message_id.in_(names))
    return (
        select(
            t.exchanges.c.id,
            t.exchanges.c.user,
            t.exchanges.c.client_message_id,
            t.exchanges.c.admitted_at,
            t.turns.c.session,
            t.turns.c.kind,
        )
        .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
        .where(*conditions)
        .order_by(t.exchanges.c.seq.desc())
    )


def _prefer_main(rows: Sequence[Row[Any]]) -> list[FoundReply]:
    main = [row for row in rows if row.kind == Kind.MAIN.value]
    return [
        FoundReply(
            id=row.id,
            session=row.session,
            user=row.user,
            client_message_id=row.client_message_id,
            admitted_at=row.admitted_at,
        )
        for row in main or rows
    ]


def _choose_newest(found: Sequence[FoundReply], wanted: ReplyMatch) -> MatchResult:
    """Return the newest reply. An id that two conversations use names no reply."""
    if not found:
        return MatchResult()
    of_message = wanted.client_message_id is not None
    if of_message and len({reply.session for reply in found}) > 1:
        return MatchResult(candidates=tuple(found), distinguished_by=_distinguishing_fields(found))
    return MatchResult(reply=found[0])


def _choose_only(found: Sequence[FoundReply]) -> MatchResult:
    messages = {reply.client_message_id for reply in found}
    if len(found) == 1 or (len(messages) == 1 and None not in messages):
        return MatchResult(reply=found[0])
    return MatchResult(candidates=tuple(found), distinguished_by=_distinguishing_fields(found))


def _distinguishing_fields(found: Sequence[FoundReply]) -> tuple[MatchField, ...]:
    """Return the fields in which all replies differ; else those in which some do, and `target`."""
    fields: dict[MatchField, list[str | None]] = {
        MatchField.CLIENT_MESSAGE_ID: [reply.client_message_id for reply in found],
        MatchField.SESSION: [reply.session for reply in found],
        MatchField.USER: [reply.user for reply in found],
    }
    sure = tuple(name for name, values in fields.items() if len(set(values)) == len(found))
    if sure:
        return sure
    partly = tuple(name for name, values in fields.items() if len(set(values)) > 1)
    return (*partly, MatchField.TARGET)
