"""Turns in a real store, made as the gateway and collect make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.types import (
    ExchangeStatus,
    Feedback,
    FinishReason,
    Message,
    Reply,
    Request,
    Sampling,
    Span,
    TurnState,
    Verdict,
)

IDENTITY = "i"


@dataclass
class World:
    """A store and the means to let things happen in it."""

    config: Config
    store: Store

    def served(self, id: str, *messages: Message, user: str = "", scope: str = "s") -> None:
        """A reply to these messages; by default to a question of its own."""
        request = Request(
            id=id,
            scope=scope,
            user=user,
            messages=messages or ({"role": "user", "content": f"ask {id}"},),
            marks=(),
            sampling=Sampling(),
            prompt_ids=np.array([1, 2, 3], dtype=np.int32),
            version=0,
            identity=IDENTITY,
            admitted_at=1.0,
        )
        reply = Reply(
            id=id,
            status=ExchangeStatus.DONE,
            message={"role": "assistant", "content": f"answer {id}"},
            response_ids=np.array([4, 5], dtype=np.int32),
            logprobs=np.array([-0.5, -0.5], dtype=np.float32),
            mask=np.array([True, True]),
            spans=(Span(start=0, end=2, version=0),),
            finish_reason=FinishReason.STOP,
            mark=None,
            finished_at=2.0,
        )
        with self.store.write(durable=False) as conn:
            exchanges.admit(conn, [request])
            exchanges.finish(conn, [reply])

    def close(self, id: str, *said: str, role: str = "user") -> None:
        """The conversation went on: the turn is served (the first time) and closed."""
        with self.store.read() as conn:
            known = turns.get(conn, id) is not None
        if not known:
            self.served(id)
        messages = tuple({"role": role, "content": words} for words in said)
        with self.store.write(durable=False) as conn:
            signature = repr(said).encode()
            assert reactions.record_reaction(
                conn, id, messages=messages, signature=signature, source="u", how="exact", at=3.0
            )

    def close_with_tool(self, id: str, result: str, said: str) -> None:
        """A tool answered the served turn, and then the person."""
        messages = ({"role": "tool", "content": result}, {"role": "user", "content": said})
        with self.store.write(durable=False) as conn:
            signature = repr(messages).encode()
            assert reactions.record_reaction(
                conn, id, messages=messages, signature=signature, source="u", how="exact", at=3.0
            )

    def give(self, id: str, **feedback: Any) -> None:
        """Explicit feedback arrives and is taken up."""
        given = Feedback(id=f"f-{id}-{feedback}", scope="s", target=id, given_at=4.0, **feedback)
        with self.store.write(durable=False) as conn:
            records.add_feedback(conn, [given])
            assert reactions.record_pending_feedback(conn, id, 4.0)

    def verdict(self, id: str) -> Verdict | None:
        with self.store.read() as conn:
            return turns.current_verdict(conn, id)

    def waiting(self) -> bool:
        """Whether a turn waits for its verdict."""
        with self.store.read() as conn:
            return turns.count_unjudged(conn)[0] > 0

    def judged(self) -> int:
        with self.store.read() as conn:
            return turns.count_by_state(conn).get(TurnState.JUDGED, 0)

    def state(self, id: str) -> TurnState:
        with self.store.read() as conn:
            turn = turns.get(conn, id)
        assert turn is not None
        return turn.state
