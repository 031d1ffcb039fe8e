"""Format stored turns as trajectories: all fields that an import restores, except defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from openclaw_rl.store.sessions import StoredTurn
from openclaw_rl.trajectories.schema import is_valid_unicode, prompt_and_response
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    Feedback,
    Kind,
    Message,
    Origin,
    Reaction,
    Reply,
    Request,
    Sampling,
    Span,
    TurnState,
    Verdict,
)


def turn_to_json(item: StoredTurn) -> dict[str, Any]:
    """Return one turn in the JSON format. Default values are omitted."""
    turn = item.turn
    drop = {"cause": item.cause, "reason": turn.reason} if turn.state is TurnState.DROPPED else None
    return {
        "type": item.kind.value,
        **(
            _text_fields(item)
            if item.exchange.request.capture is Capture.FULL
            else {"redacted": True}
        ),
        **_drop_empty(_reaction_fields(item.reaction)),
        "trainable": item.kind is Kind.MAIN and turn.untrainable is None,
        "id": turn.id,
        **_drop_empty(
            {
                "untrainable": turn.untrainable,
                "untrainable_code": turn.untrainable_code,
                "parent": turn.parent,
            }
        ),
        **_request_fields(item.exchange.request),
        **_reply_fields(item.exchange.request, item.reply),
        **_drop_empty(
            {
                "relation": None if turn.relation == "fresh" else turn.relation,
                "relation_of": turn.relation_of,
            }
        ),
        **_drop_empty(
            {
                "unlinked": turn.unlinked,
                "unlinked_code": turn.unlinked_code,
                "verdict": item.verdict and _verdict_to_json(item.verdict),
                "dropped": drop,
            }
        ),
    }


def _drop_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without empty ones."""
    return {key: value for key, value in values.items() if value not in (None, (), [], {}, "")}


def _text_fields(item: StoredTurn) -> dict[str, Any]:
    """Return prompt and response as text, and the messages that they come from."""
    request = item.exchange.request
    reply = item.reply
    return {
        **prompt_and_response(request.messages, reply.message),
        "messages": list(request.messages),
        "message": dict(reply.message) or {"role": "assistant", "content": ""},
        **_drop_empty(
            {
                "tools": list(request.tools),
                "template": dict(request.template),
                "lessons": dict(request.lessons),
            }
        ),
    }


def _request_fields(request: Request) -> dict[str, Any]:
    return {
        **_drop_empty(
            {
                "agent": request.agent,
                "user": request.user,
                "sampling": sampling_to_json(request.sampling),
            }
        ),
        "dialect": request.dialect,
        "version": request.version,
        "at": request.admitted_at,
    }


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters that differ from the defaults."""
    plain = Sampling()
    values = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def _reply_fields(request: Request, reply: Reply) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if len(request.prompt_ids):
        values["prompt_ids"] = request.prompt_ids.tolist()
        values |= _token_fields(request, reply)
    if request.origin is Origin.TEXT:
        values["off_policy"] = True
    if reply.status is ExchangeStatus.DONE:
        values["finish"] = reply.finish_reason.value if reply.finish_reason else None
    else:
        values["status"] = reply.status.value
    values |= _drop_empty({"error": reply.error, "first_token_at": reply.first_token_at})
    values["finished_at"] = reply.finished_at
    return values


def _token_fields(request: Request, reply: Reply) -> dict[str, Any]:
    r = len(reply.response_ids)
    whole = (Span(start=0, end=r, version=request.version),)
    return {
        "response_ids": reply.response_ids.tolist(),
        "logprobs": [p if np.isfinite(p) else None for p in reply.logprobs.tolist()],
        **({} if reply.mask.all() else {"mask": reply.mask.tolist()}),
        **({} if reply.spans in ((), whole) else {"spans": list(reply.spans)}),
        "identity": request.identity,
    }


def _reaction_fields(reaction: Reaction | None) -> dict[str, Any]:
    if reaction is None:
        return {}
    return {
        "next_state": next_state_to_json(reaction.messages),
        "reaction": {
            "how": reaction.how,
            **_drop_empty({"source": reaction.source}),
            "at": reaction.at,
        },
        "feedback": [_feedback_to_json(f) for f in reaction.feedback],
    }


def next_state_to_json(messages: Sequence[Message]) -> str | list[Message] | None:
    """Return a single plain user message as text, if it is valid Unicode; otherwise the list of messages."""
    match messages:
        case []:
            return None
        case [{"role": "user", "content": str(text), **others}] if text and not others:
            return text if is_valid_unicode(text) else list(messages)
        case _:
            return list(messages)


def _feedback_to_json(f: Feedback) -> dict[str, Any]:
    values = {
        "score": f.score,
        "comment": f.comment,
        "correction": f.correction,
        "given_by": f.given_by,
    }
    return {"id": f.id, "given_at": f.given_at} | {k: v for k, v in values.items() if v is not None}


def _verdict_to_json(v: Verdict) -> dict[str, Any]:
    return {
        "score": v.score,
        "judge": v.judge,
        "at": v.at,
        **_drop_empty(
            {"hints": v.hints, "votes": v.votes, "reason": v.reason, "reason_code": v.reason_code}
        ),
        **({"explicit": True} if v.explicit else {}),
        **({"weight": v.weight} if v.weight != 1 else {}),
    }
