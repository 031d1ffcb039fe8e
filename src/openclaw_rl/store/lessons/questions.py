"""Hash of the question of a prompt, by which lessons about one answer are found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, hashed_text
from openclaw_rl.types import Message


def question_hash(
    messages: Sequence[Message],
    is_ephemeral: Callable[[Message], bool],
    *,
    key: bytes,
    user: str = "",
) -> str:
    """Return a keyed hash of the last user message, without regard to case and white space; "" without one.

    A short message ("yes", "and its capital?") means something else in another conversation. It counts together with as
    many user messages before it as have `DISTINCTIVE_CHARS` with it. `user`: who asks; the same question of another
    user has another hash.
    """
    asked: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "user" or is_ephemeral(message):
            continue
        normalised = " ".join(hashed_text(message).casefold().split())
        asked.insert(0, normalised)
        if sum(map(len, asked)) >= DISTINCTIVE_CHARS:
            break
    if not asked:
        return ""
    text = "\x1f".join(asked)
    if user:
        text = f"{user}\0{text}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()
