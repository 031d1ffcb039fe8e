"""Canonical form of messages, its keyed hash, and the chained hash of a history.

Clients change the messages that they send back: tool-call ids are shortened, line ends change, reasoning is stripped,
arguments are re-serialised. The canonical form removes these differences; stored tokens are never normalised.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from openclaw_rl.common.client_patterns import Pattern
from openclaw_rl.types import Mark, Message

DISTINCTIVE_CHARS = 24
_ROLES = {"developer": "system", "function": "tool"}
_THINK = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
# Text that OpenClaw adds to a person's message: why the agent was woken, and where it runs. It changes between
# requests, moves, and is merged with text that was a separate message of the person before.
_WAKE = re.compile(
    r"\[OpenClaw (?:heartbeat poll|exec completion|cron wake|session event)\]"
    r"(?:\nDisable automatic completion turns[^\n]*)?"
)
_RUNTIME = re.compile(
    r"\bRuntime: agent=(?P<agent>[^|\n]{1,200}?) \| session=[^|\n]{1,400} "
    r"\| sessionId=(?P<session>[^|\s]{1,200})[^\n]*"
)
# A message that is sent again after its turn was aborted; later requests have it as the person wrote it.
_QUEUED = re.compile(r"\[Queued user message from a previous active turn;[^\]\n]{0,600}\]\n")
_CONTINUE = re.compile(r"\bContinue the current task from the existing transcript, preserving completed work\.[^\n]*+")
_SEPARATOR = b"\x1f"
_RECORD = 16 + 16 + 4  # own, chain, index (24 bits) with flags


class Transience:
    """Recognises ephemeral messages, which a client adds to one request and removes from the next.

    OpenClaw ends every request with such a user message. It is neither a reaction nor part of the history.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [Pattern(p, re.DOTALL) for p in patterns]

    def __call__(self, message: Message) -> bool:
        if message.get("role") not in ("user", "system", "developer"):
            return False
        text = text_of(message)
        return any(p.search(text) for p in self._patterns)


def text_of(message: Message) -> str:
    """Return the text of a message, its parts joined; parts that are not text (images) as canonical JSON."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(p) for p in content)
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part, sort_keys=True, ensure_ascii=False)


def normalise(text: str) -> str:
    """Return the text in NFC, with LF line ends and without outer white space."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.strip()


def visible_text(message: Message) -> str:
    """Return the normalised text of a message without reasoning and without text that OpenClaw added."""
    text = text_of(message)
    role = message.get("role")
    if role == "assistant" and "</think>" in text:
        text = _THINK.sub("", text)
    elif role == "user":
        text = typed(text)
    return normalise(text)


def typed(text: str) -> str:
    """Return the text of a user message without the parts that OpenClaw added."""
    if "[OpenClaw " in text:
        text = _WAKE.sub("", text)
    if "[Queued user message" in text:
        text = _without(_CONTINUE, _QUEUED.sub("", text), last=True)
    return _without(_RUNTIME, text) if "Runtime: agent=" in text else text


def _without(pattern: re.Pattern[str], text: str, *, last: bool = False) -> str:
    r"""Remove each match and the white space before it; with `last` only a match at the end of the text.

    The patterns do not start with `\s*`, since that scans a run of white space once from each of its positions.
    """
    kept, at = [], 0
    end = len(text.rstrip())
    for match in pattern.finditer(text):
        if last and match.end() < end:
            continue
        kept.append(text[at : match.start()].rstrip())
        at = len(text) if last else match.end()
    return "".join([*kept, text[at:]])


def origin(message: Message) -> tuple[str, str] | None:
    """Return (session, agent) from the end of a session's first OpenClaw user message, or None."""
    if message.get("role") != "user" or "Runtime: agent=" not in (text := text_of(message)):
        return None
    end = len(text.rstrip())
    said = [m for m in _RUNTIME.finditer(text) if m.end() == end]
    return (said[-1]["session"], said[-1]["agent"]) if said else None


def _arguments(raw: Any) -> str:
    """Return tool arguments as canonical JSON; text that is not JSON is only normalised."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw, parse_float=_number)
        except (ValueError, RecursionError):
            return normalise(str(raw))
    return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _number(words: str) -> float:
    """Parse a number as JavaScript does, which has no integer type: 2.0 becomes 2."""
    value = float(words)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _fields(message: Message) -> list[str]:
    role = str(message.get("role", ""))
    fields = [_ROLES.get(role, role), visible_text(message)]
    made = message.get("tool_calls")
    for call in made if isinstance(made, list | tuple) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            function = {}
        fields += [str(function.get("name", "")), _arguments(function.get("arguments", ""))]
    return fields


def own_hash(message: Message, key: bytes) -> bytes:
    """Return the keyed hash [16 bytes] of one canonical message."""
    digest = blake2b(digest_size=16, key=key)
    for value in _fields(message):
        raw = value.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + _SEPARATOR + raw)
    return digest.digest()


def extend(chain: bytes, own: bytes, key: bytes) -> bytes:
    """Return the chained hash [16 bytes] after one more message."""
    return blake2b(chain + own, digest_size=16, key=key).digest()


ROOT = bytes(16)


def mark(message: Message, *, index: int, chain: bytes, key: bytes) -> Mark:
    """Return the mark of a message that follows a history with the chained hash `chain`."""
    own = own_hash(message, key)
    role = str(message.get("role", ""))
    return Mark(
        index=index,
        role=_ROLES.get(role, role),
        own=own,
        chain=extend(chain, own, key),
        distinctive=len(visible_text(message)) >= DISTINCTIVE_CHARS,
    )


def marks(
    messages: Sequence[Message], key: bytes, transient: Transience, *, known: Sequence[Mark] = (), upto: int = 0
) -> tuple[Mark, ...]:
    """Return the marks of all non-ephemeral messages, in order. `known`: marks of the first `upto` messages."""
    out = list(known)
    chain = out[-1].chain if out else ROOT
    for index in range(upto, len(messages)):
        message = messages[index]
        if transient(message):
            continue
        out.append(mark(message, index=index, chain=chain, key=key))
        chain = out[-1].chain
    return tuple(out)


def signature_of(reaction: Sequence[Mark]) -> bytes | None:
    """Return the hash [16 bytes] of the messages in order; results of parallel tool calls may come in any order."""
    if not reaction:
        return None
    runs = [[m.own for m in run] for _, run in groupby(reaction, key=lambda m: m.role == "tool" or id(m))]
    return blake2b(b"".join(own for run in runs for own in sorted(run)), digest_size=16).digest()


_ROLE_CODES = ("system", "user", "assistant", "tool", "")


class Packer:
    """`pack_marks` for successive histories; a history that extends the previous one reuses its bytes."""

    def __init__(self) -> None:
        self._items: tuple[Mark, ...] = ()
        self._raw = b""

    def __call__(self, items: tuple[Mark, ...]) -> bytes:
        known = self._raw if items[: len(self._items)] == self._items else b""
        self._items, self._raw = items, known + pack(items[len(known) // _RECORD :])
        return self._raw


def pack(items: Sequence[Mark]) -> bytes:
    """Return marks as bytes for the store, 36 bytes each."""
    out = bytearray()
    for m in items:
        role = _ROLE_CODES.index(m.role) if m.role in _ROLE_CODES else len(_ROLE_CODES) - 1
        out += m.own + m.chain + (m.index << 8 | role << 1 | m.distinctive).to_bytes(4, "little")
    return bytes(out)


def unpack(raw: bytes) -> tuple[Mark, ...]:
    """Return the marks that `pack_marks` packed; a role other than the four common ones becomes ""."""
    if len(raw) % _RECORD:
        raise ValueError(f"marks: expected a multiple of {_RECORD} bytes, got {len(raw)}")
    out = []
    for at in range(0, len(raw), _RECORD):
        tail = int.from_bytes(raw[at + 32 : at + 36], "little")
        out.append(
            Mark(
                index=tail >> 8,
                role=_ROLE_CODES[tail >> 1 & 0x7F],
                own=raw[at : at + 16],
                chain=raw[at + 16 : at + 32],
                distinctive=bool(tail & 1),
            )
        )
    return tuple(out)
