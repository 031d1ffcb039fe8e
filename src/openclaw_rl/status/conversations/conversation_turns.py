"""Turns of a conversation for people: messages, reaction, verdict, and whether it was learned from or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.conversations.conversation_text import (
    conversation_messages,
    message_data,
    new_messages,
)
from openclaw_rl.status.readable_turns import readable_reactions, readable_verdicts
from openclaw_rl.status.report import CURES
from openclaw_rl.status.sentences import score_word
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE, is_signal
from openclaw_rl.store.lineage.trained_turns import versions_of_turns
from openclaw_rl.types import Exchange, Reaction, Turn, TurnState, Verdict

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
        self._reactions = readable_reactions(conn, ids)
        self._verdicts = readable_verdicts(conn, ids)
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


# ----------------------------------------------------------------------------------------- sentences

_CODE_WORDS = {
    ReasonCode.SIDE: "side traffic, such as titles and summaries",
    ReasonCode.REDACTED: "stored without its text",
    ReasonCode.SESSION_DONE: "the conversation ended without a reaction",
    ReasonCode.TIMEOUT: "nobody reacted in time",
    ReasonCode.GREEDY: "greedy sampling (temperature 0)",
    ReasonCode.STATED: "stated by its source",
}


def code_words(code: ReasonCode) -> str:
    """Return a short name of a group of reasons."""
    return _CODE_WORDS.get(code, code.value.replace("_", " "))


def judge_words(verdict: Verdict) -> str:
    """Return who gave a verdict."""
    if verdict.explicit:
        return "the person"
    if is_signal(verdict.judge):
        return f"what the person did ({verdict.judge.removeprefix(BEHAVIOUR_JUDGE)})"
    return f"judge {verdict.judge.partition('@')[0]}"


def verdict_account(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict in words, as plain JSON."""
    return {
        "word": score_word(verdict.score),
        "score": verdict.score,
        "by": judge_words(verdict),
        "judge": verdict.judge,
        "reason": verdict.reason,
        "hints": list(verdict.hints),
        "votes": [
            {"word": score_word(vote.score), "reason": vote.error or vote.reason}
            for vote in verdict.votes
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAccount:
    """Whether a turn was learned from. `cure`: what makes the next ones trainable; "": nothing does."""

    text: str
    cure: str = ""
    code: ReasonCode | None = None


def training_account(
    turn: Turn, verdict: Verdict | None, versions: Sequence[int]
) -> TrainingAccount:
    """Return whether a turn was learned from, or why not. `versions`: those that used it."""
    if versions:
        listed = ", ".join(str(version) for version in versions)
        text = f"Learned from in version {listed}."
        if turn.state is TurnState.DROPPED and turn.reason:
            text += f" It is not used again: {turn.reason}."
        return TrainingAccount(text=text, code=turn.cause)
    if turn.untrainable_code is not None:
        return TrainingAccount(
            text=f"Not learned from: {turn.untrainable}.",
            cure=CURES.get(turn.untrainable_code, ""),
            code=turn.untrainable_code,
        )
    if turn.state is TurnState.DROPPED:
        return TrainingAccount(
            text=f"Not learned from: {turn.reason or 'it was dropped'}.", code=turn.cause
        )
    return TrainingAccount(text=_waiting_text(turn.state, verdict))


def _waiting_text(state: TurnState, verdict: Verdict | None) -> str:
    if state is TurnState.SERVED:
        return "Not learned from yet: nobody has reacted to it."
    if state is TurnState.CLOSED or verdict is None:
        return "Not learned from yet: the reaction waits for its verdict."
    if verdict.score or verdict.hints:
        return "Not learned from yet: it waits for the next training step."
    if verdict.score is None:
        return "Not learned from: the reaction was not understood. A score of yours would say it."
    return "Not learned from: the reaction says nothing about the reply."
