"""Exchanges to put into a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common import message_hash
from openclaw_rl.store import exchanges, reactions, turns
from openclaw_rl.types import (
    Exchange,
    ExchangeStatus,
    FinishReason,
    Policy,
    PolicyState,
    Reply,
    Request,
    Sampling,
    Span,
    Verdict,
)

KEY = b"k" * 32
NOTHING = message_hash.EphemeralMatcher(())
WORDS = "Here is what you asked for."


def request(id: str, **changes: Any) -> Request:
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": f"this is {id}"},
    ]
    made = Request(
        id=id,
        scope="key",
        agent="agent",
        messages=messages,
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
        marks=message_hash.mark_messages(messages, KEY, NOTHING),
        template={"enable_thinking": False, "n": {"deep": [1, None]}},
        sampling=Sampling(temperature=0.7, stop=("END",), seed=3),
        prompt_ids=np.array([1, 2, 3, 2**31 - 1], np.int32),
        version=0,
        identity="i",
        admitted_at=10.0,
    )
    return replace(made, **changes)


def reply(to: Request, ids: Sequence[int] = (5, 6, 7), **changes: Any) -> Reply:
    message = {"role": "assistant", "content": WORDS}
    n = len(ids)
    made = Reply(
        id=to.id,
        status=ExchangeStatus.DONE,
        message=message,
        response_ids=np.array(ids, np.int32),
        logprobs=np.linspace(-1.5, -0.25, n, dtype=np.float32),
        mask=np.arange(n) % 2 == 0,
        spans=(Span(start=0, end=n, version=0),) if n else (),
        finish_reason=FinishReason.STOP,
        mark=message_hash.mark_message(message, index=2, chain=to.marks[-1].chain, key=KEY),
        finished_at=11.0,
    )
    return replace(made, **changes)


def serve(conn: Connection, id: str, **changes: Any) -> None:
    made = request(id)
    exchanges.admit(conn, [made])
    exchanges.finish(conn, [reply(made, **changes)])


def close(conn: Connection, id: str, words: str = "Thanks.", at: float = 12.0) -> bool:
    said = [{"role": "user", "content": words}]
    return reactions.record_reaction(
        conn, id, messages=said, signature=words.encode(), source="later", how="exact", at=at
    )


def verdict(turn: str, revision: int = 1, score: int | None = 1, **changes: Any) -> Verdict:
    return replace(
        Verdict(turn=turn, revision=revision, judge="rules", score=score, at=13.0), **changes
    )


def judged(
    conn: Connection, id: str, *, score: int | None = 1, hints: tuple[str, ...] = (), **changes: Any
) -> None:
    serve(conn, id, **changes)
    close(conn, id)
    assert turns.add_verdict(conn, verdict(id, score=score, hints=hints))


def policy(version: int, parent: int) -> Policy:
    return Policy(
        version=version,
        parent=parent,
        state=PolicyState.CANDIDATE,
        path=f"/elsewhere/{version}",
        digest=f"d{version}",
        base="base",
        identity="i",
        memory={"baseline": {"agent": 0.5}},
        metrics={"loss": 0.25},
        created_at=20.0,
    )


def equal(a: Exchange, request_: Request, reply_: Reply | None) -> None:
    """Asserts that what came back is what was put in, arrays included."""
    for back, put in ((a.request, request_), (a.reply, reply_)):
        if put is None:
            assert back is None
            continue
        for name in put.__dataclass_fields__:
            x, y = getattr(back, name), getattr(put, name)
            if isinstance(y, np.ndarray):
                assert x.dtype == y.dtype, name
                np.testing.assert_array_equal(x, y, err_msg=name)
            else:
                assert x == y, name
