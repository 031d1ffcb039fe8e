"""The turns of an episode without their text, as the gateway and `inspect` show them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from openclaw_rl.store import schema as t

_TOKEN_BYTES = 4


def list_turns(conn: Connection, episode: str) -> list[dict[str, Any]]:
    """Return the turns in the order of admission: step, state, version, numbers of tokens, and why one is not used."""
    x = t.exchanges.c
    turn = t.turns.c
    step = t.episode_steps.c
    query = (
        select(
            turn.id,
            turn.kind,
            turn.state,
            turn.reason,
            turn.cause,
            turn.untrainable,
            turn.untrainable_code,
        )
        .add_columns(turn.relation, turn.parent, turn.uses)
        .add_columns(
            x.status, x.version, x.finish_reason, step.step, step.reward.label("step_reward")
        )
        .add_columns(func.length(t.bodies.c.prompt_ids).label("prompt_bytes"))
        .add_columns(func.length(t.replies.c.response_ids).label("response_bytes"))
        .join(t.exchanges, x.seq == turn.seq)
        .join(t.bodies, t.bodies.c.seq == turn.seq)
        .outerjoin(t.replies, t.replies.c.seq == turn.seq)
        .outerjoin(t.episode_steps, step.turn == turn.id)
        .where(x.episode == episode)
        .order_by(turn.seq)
    )
    return [
        {
            "id": row.id,
            "step": row.step,
            "step_reward": row.step_reward,
            "kind": row.kind,
            "state": row.state,
            "status": row.status,
            "finish_reason": row.finish_reason,
            "relation": row.relation,
            "parent": row.parent,
            "version": row.version,
            "prompt_tokens": (row.prompt_bytes or 0) // _TOKEN_BYTES,
            "response_tokens": (row.response_bytes or 0) // _TOKEN_BYTES,
            "drop_reason": row.reason,
            "drop_code": row.cause,
            "untrainable": row.untrainable,
            "untrainable_code": row.untrainable_code,
            "uses": row.uses,
        }
        for row in conn.execute(query)
    ]
