"""Turns of a conversation for people: messages, reaction, verdict, and the versions that used it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.errors import DamagedRow
from openclaw_rl.status.conversations.conversation_text import (
    conversation_messages,
    message_data,
    new_messages,
)
from openclaw_rl.status.conversations.turn_account import training_account, verdict_account
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.lineage.trained_turns import versions_of_turns
from openclaw_rl.types import Exchange, Reaction, Verdict

MAX_MESSAGES = 60
"""Newest messages of a prompt that are shown."""


def conversation_turns(conn: Connection, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return turns as plain JSON, with the messages that each brought."""
    read = _TurnReader(conn, ids)
    return [read.turn_data(id_) for id_ in ids]


def whole_turn(conn: Connection, id_: str) -> dict[str, Any]:
    """Return one turn as plain JSON, with its whole prompt, and what is known of its sampling.

    `hidden`: number of older messages that are left out.
    """
    read = _TurnReader(conn, [id_])
    data = read.turn_data(id_)
    exchange = read.exchanges.get(id_)
    if exchange is None:
        return data | {"history": [], "hidden": 0, "call": None, "lessons": {}}
    messages = conversation_messages(exchange.request)
    older = messages[: len(messages) - len(new_messages(messages))]
    return data | {
        "history": [message_data(message) for message in older[-MAX_MESSAGES:]],
        "hidden": max(0, len(older) - MAX_MESSAGES),
        "lessons": dict(exchange.request.lessons),
        "call": _call_data(exchange),
    }


def _call_data(exchange: Exchange) -> dict[str, Any]:
    request = exchange.request
    reply = exchange.reply
    data: dict[str, Any] = {
        "agent": request.agent,
        "user": request.user,
        "session": request.session,
        "sampling": request.sampling,
        "prompt_tokens": len(request.prompt_ids),
        "tools": len(request.tools),
        "origin": request.origin,
    }
    if reply is None:
        return data | {"reply_tokens": 0, "seconds": None, "first_seconds": None, "finish": None}
    first = reply.first_token_at
    return data | {
        "reply_tokens": len(reply.response_ids),
        "seconds": reply.finished_at - request.admitted_at,
        "first_seconds": None if first is None else first - request.admitted_at,
        "finish": reply.finish_reason or reply.status,
    }


class _TurnReader:
    """Reads all that belongs to some turns, with one statement for each table."""

    def __init__(self, conn: Connection, ids: Sequence[str]) -> None:
        self.exchanges = exchanges.get_readable(conn, ids)
        self._turns = turns.get_many(conn, ids)
        self._reactions = _readable_reactions(conn, ids)
        self._verdicts = _readable_verdicts(conn, ids)
        self._versions = versions_of_turns(conn, ids)

    def turn_data(self, id_: str) -> dict[str, Any]:
        turn = self._turns[id_]
        verdict = self._verdicts.get(id_)
        versions = self._versions.get(id_, [])
        exchange = self.exchanges.get(id_)
        return {
            "id": id_,
            "state": turn.state.value,
            "kind": turn.relation,
            "messages": [] if exchange is None else _new_messages(exchange),
            "reply": None if exchange is None else _reply_data(exchange),
            "is_readable": exchange is not None and bool(exchange.request.messages),
            "at": None if exchange is None else exchange.request.admitted_at,
            "version": None if exchange is None else exchange.request.version,
            "reaction": _reaction_data(self._reactions.get(id_)),
            "verdict": None if verdict is None else verdict_account(verdict),
            "versions": versions,
            "training": training_account(turn, verdict, versions),
        }


def _new_messages(exchange: Exchange) -> list[dict[str, Any]]:
    return [
        message_data(message) for message in new_messages(conversation_messages(exchange.request))
    ]


def _reply_data(exchange: Exchange) -> dict[str, Any] | None:
    reply = exchange.reply
    return None if reply is None or not reply.message else message_data(reply.message)


def _reaction_data(reaction: Reaction | None) -> dict[str, Any] | None:
    if reaction is None:
        return None
    return {
        "messages": [message_data(message) for message in reaction.messages],
        "feedback": [
            {"score": one.score, "comment": one.comment, "correction": one.correction}
            for one in reaction.feedback
        ],
        "at": reaction.at,
    }


def _readable_reactions(conn: Connection, ids: Sequence[str]) -> dict[str, Reaction]:
    try:
        return turns.current_reactions(conn, ids)
    except DamagedRow:
        # One damaged row hides those of this page alone.
        return {}


def _readable_verdicts(conn: Connection, ids: Sequence[str]) -> dict[str, Verdict]:
    try:
        return turns.current_verdicts(conn, ids)
    except DamagedRow:
        return {}
