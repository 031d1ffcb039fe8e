"""Choice of the conversations that a canary answers."""

from __future__ import annotations

from hashlib import blake2b

from openclaw_rl.serve.prompt_builder import HashedHistory
from openclaw_rl.store.lineage.policy_marks import CanaryMark


def conversation_of(scope: str, session: str | None, history: HashedHistory) -> bytes:
    """Return what all requests of a conversation have in common: its session, else its first words of a person."""
    if session:
        return f"{scope}/{session}".encode(errors="surrogatepass")
    first = next((mark.chain for mark in history.marks if mark.role == "user"), b"")
    return scope.encode() + first


def is_chosen(canary: CanaryMark, conversation: bytes) -> bool:
    """Return whether the canary answers this conversation. Another version draws others."""
    drawn = blake2b(conversation, digest_size=8, salt=canary.version.to_bytes(8, "little")).digest()
    return int.from_bytes(drawn, "little") < canary.share * 2**64
