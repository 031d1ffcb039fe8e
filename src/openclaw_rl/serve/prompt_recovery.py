"""After a restart: the tokens of earlier exchanges, from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.render.caches import Past
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import StoredPast
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Exchange, ExchangeStatus, FinishReason, Ids


class StoreRecall:
    """Finds the exchanges of replies that stand in a history, when their tokens may be used again."""

    def __init__(self, store: Store, *, identity: str, stop_token_ids: Sequence[int]) -> None:
        self._store, self._identity, self._stops = store, identity, frozenset(stop_token_ids)

    def exchange(self, scope: str, chain: bytes, tools: Sequence[Mapping[str, Any]]) -> Past | None:
        """`chain`: of the marks up to and including the reply. The newest whose next prompt may go on from its ids."""
        for found in self._ended(scope, [chain]):
            request, reply = found.request, found.reply
            plain = len(request.marks) == len(request.messages)  # no transient message stood in it
            if reply is not None and plain and not request.template and to_json(request.tools) == to_json(tools):
                return Past(request.prompt_ids, reply.response_ids)
        return None

    def replies(self, scope: str, chains: Sequence[bytes]) -> Mapping[bytes, tuple[Ids, str]]:
        """Of each reply with one of these chains: its ids [R] and its reasoning. The newest of each."""
        out: dict[bytes, tuple[Ids, str]] = {}
        for found in self._ended(scope, chains):
            reply = found.reply
            if reply is not None and reply.mark is not None:
                reasoning = str(reply.message.get("reasoning_content") or "")
                out.setdefault(reply.mark.chain, (reply.response_ids, reasoning))
        return out

    def _ended(self, scope: str, chains: Sequence[bytes]) -> list[Exchange]:
        """Newest first: those that ended whole, under the same tokenizer, template and weights."""
        with self._store.read() as conn:
            pasts = [p for p in StoredPast(conn).by_chain(scope, chains) if p.status is ExchangeStatus.DONE]
            found = [exchanges.get(conn, p.id) for p in reversed(pasts)]
        return [e for e in found if e is not None and self._whole(e)]

    def _whole(self, exchange: Exchange) -> bool:
        request, reply = exchange.request, exchange.reply
        if reply is None or len(reply.response_ids) == 0 or len(request.prompt_ids) == 0:
            return False
        ended = reply.finish_reason is FinishReason.LENGTH or int(reply.response_ids[-1]) in self._stops
        return (
            ended  # else a stop string cut it
            and bool(reply.mask.all())
            and request.identity == self._identity
        )
