"""One row per turn with the same columns in every row, as `datasets.load_dataset("json", ...)` requires.

No column has nulls or lists of unknown type, because readers of such files infer types from the first rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.store.rows import to_json
from openclaw_rl.store.sessions import StoredSession, StoredTurn
from openclaw_rl.trajectories.schema import prompt_of, replace_lone_surrogates
from openclaw_rl.types import ExchangeStatus, Kind


def turn_to_row(session: StoredSession, item: StoredTurn) -> Mapping[str, Any] | None:
    """Return the row of a turn; None if it has no text, no tokens, or no log-probabilities."""
    request = item.exchange.request
    reply = item.reply
    verdict = item.verdict
    has_tokens = len(reply.response_ids) > 0 and len(request.prompt_ids) > 0
    has_logprobs = bool(np.isfinite(reply.logprobs).all())
    if reply.status is not ExchangeStatus.DONE or not (has_tokens and has_logprobs):
        return None
    reaction = item.reaction.messages if item.reaction else ()
    score = verdict.score if verdict is not None else None
    return {
        "session_id": session.name,
        "turn_id": item.turn.id,
        "type": item.kind.value,
        "trainable": item.kind is Kind.MAIN and item.turn.untrainable is None,
        "untrainable": item.turn.untrainable or "",
        "state": item.turn.state.value,
        "agent": request.agent,
        "prompt": replace_lone_surrogates(prompt_of(request.messages)),
        "response": replace_lone_surrogates(message_text(reply.message)),
        "next_state": replace_lone_surrogates("\n".join(message_text(m) for m in reaction)),
        "messages_json": _json_text(request.messages),
        "reply_json": _json_text(reply.message),
        "tools_json": _json_text(request.tools),
        "judged": score is not None,
        "score": score or 0,
        "hints_json": _json_text(verdict.hints if verdict else ()),
        "prompt_ids": request.prompt_ids.tolist(),
        "response_ids": reply.response_ids.tolist(),
        "logprobs": reply.logprobs.tolist(),
        "mask": reply.mask.tolist(),
        "temperature": float(request.sampling.temperature),
        "version": request.version,
        "off_policy": request.origin is not None,
        "finish": reply.finish_reason.value if reply.finish_reason else "",
        "asked_at": float(request.admitted_at),
    }


def _json_text(value: Any) -> str:
    return to_json(value).decode()
