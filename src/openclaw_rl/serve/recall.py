"""After a restart: the tokens of an earlier exchange, from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.render.bridge import Past
from openclaw_rl.store import exchanges
from openclaw_rl.store.codec import to_json
from openclaw_rl.store.db import Store
from openclaw_rl.store.past import StoredPast
from openclaw_rl.types import Exchange, ExchangeStatus, FinishReason


class StoreRecall:
    """Finds the exchange whose reply a history continues, when its tokens may be gone on from."""

    def __init__(self, store: Store, *, identity: str, stop_token_ids: Sequence[int]) -> None:
        self._store, self._identity, self._stops = store, identity, frozenset(stop_token_ids)

    def __call__(self, scope: str, chain: bytes, tools: Sequence[Mapping[str, Any]]) -> Past | None:
        """`chain`: of the marks up to and including the reply. The newest that fits."""
        with self._store.read() as conn:
            for past in reversed(StoredPast(conn).by_chain(scope, [chain])):
                if past.status is not ExchangeStatus.DONE:
                    continue
                found = exchanges.get(conn, past.id)
                if found is not None and self._fits(found, tools):
                    assert found.reply is not None
                    return Past(found.request.prompt_ids, found.reply.response_ids)
        return None

    def _fits(self, exchange: Exchange, tools: Sequence[Mapping[str, Any]]) -> bool:
        request, reply = exchange.request, exchange.reply
        if reply is None or len(reply.response_ids) == 0 or len(request.prompt_ids) == 0:
            return False
        whole = reply.finish_reason is FinishReason.LENGTH or int(reply.response_ids[-1]) in self._stops
        return (
            whole  # else a stop string cut it
            and bool(reply.mask.all())
            and request.identity == self._identity
            and len(request.marks) == len(request.messages)  # no transient message stood in it
            and to_json(request.tools) == to_json(tools)
        )
