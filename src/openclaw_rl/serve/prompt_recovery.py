"""Recover the tokens of earlier exchanges from the store after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.render.caches import SampledTokens
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Exchange, ExchangeStatus, FinishReason, Ids


class PromptRecovery:
    """Finds stored exchanges whose replies occur in a history and whose tokens may be reused."""

    def __init__(self, store: Store, *, identity: str, stop_token_ids: Sequence[int]) -> None:
        self._store = store
        self._identity = identity
        self._stop_token_ids = frozenset(stop_token_ids)

    def find_exchange(
        self, scope: str, chain: bytes, tools: Sequence[Mapping[str, Any]]
    ) -> SampledTokens | None:
        """Return the newest exchange whose ids the next prompt may continue. `chain`: history hash with the reply."""
        for exchange in self._find_reusable(scope, [chain]):
            request = exchange.request
            reply = exchange.reply
            # Without ephemeral messages and lessons, which the next prompt does not have in its history.
            plain = len(request.marks) == len(request.messages) and not request.lessons
            if (
                reply is not None
                and plain
                and not request.template
                and to_json(request.tools) == to_json(tools)
            ):
                return SampledTokens(request.prompt_ids, reply.response_ids)
        return None

    def find_replies(self, scope: str, chains: Sequence[bytes]) -> Mapping[bytes, tuple[Ids, str]]:
        """Return chain hash -> (ids [R], reasoning) of the newest reply with each of these chain hashes."""
        out: dict[bytes, tuple[Ids, str]] = {}
        for exchange in self._find_reusable(scope, chains):
            reply = exchange.reply
            if reply is not None and reply.mark is not None:
                reasoning = str(reply.message.get("reasoning_content") or "")
                out.setdefault(reply.mark.chain, (reply.response_ids, reasoning))
        return out

    def _find_reusable(self, scope: str, chains: Sequence[bytes]) -> list[Exchange]:
        """Return the complete exchanges with the same tokenizer, template and base weights, newest first."""
        with self._store.read() as conn:
            pasts = [
                p
                for p in ExchangeIndex(conn).by_chain(scope, chains)
                if p.status is ExchangeStatus.DONE
            ]
            readable = exchanges.get_readable(conn, [p.id for p in pasts])
        return [
            readable[p.id]
            for p in reversed(pasts)
            if p.id in readable and self._is_reusable(readable[p.id])
        ]

    def _is_reusable(self, exchange: Exchange) -> bool:
        request = exchange.request
        reply = exchange.reply
        if reply is None or len(reply.response_ids) == 0 or len(request.prompt_ids) == 0:
            return False
        ended = (
            reply.finish_reason is FinishReason.LENGTH
            or int(reply.response_ids[-1]) in self._stop_token_ids
        )
        # `ended`: else a stop string cut the reply.
        return ended and bool(reply.mask.all()) and request.identity == self._identity
