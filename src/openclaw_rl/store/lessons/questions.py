"""Hash of the question of a prompt, by which lessons about one answer are found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from openclaw_rl.common.message_hash import hashed_text
from openclaw_rl.types import Message


def question_hash(
    messages: Sequence[Message], is_ephemeral: Callable[[Message], bool], *, key: bytes, user: str = ""
) -> str:
    """Return a keyed hash of the last user message, without regard to case and white space; "" without one.

    `user`: who asks; the same question of another user has another hash.
    """
    for message in reversed(messages):
        if message.get("role") == "user" and not is_ephemeral(message):
            text = " ".join(hashed_text(message).casefold().split())
            asked = f"{user}\0{text}" if user else text
            return blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()
    return ""
