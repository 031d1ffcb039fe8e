"""Canonical form of messages, its keyed hash, and the chained hash of a history.

Clients change the messages that they send back: tool-call ids are shortened, line ends change, reasoning is stripped,
arguments are re-serialised. The canonical form removes these differences; stored tokens are never normalised.
"""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import groupby
from typing import Any

from openclaw_rl.common.client_context import strip_added_text
from openclaw_rl.common.client_patterns import ClientContext
from openclaw_rl.common.images.image_prompt import image_digest
from openclaw_rl.types import Mark, Message

DISTINCTIVE_CHARS = 24
_ROLES = {"developer": "system", "function": "tool"}
_REASONING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
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
_QUEUED_MESSAGE = re.compile(
    r"\[Queued user message from a previous active turn;[^\]\n]{0,600}\]\n"
)
_CONTINUE_TASK = re.compile(
    r"\bContinue the current task from the existing transcript, preserving completed work\.[^\n]*+"
)
# OpenClaw stamps each message with its time, and a message that it sends again with the time of the retry.
_TIME_STAMP = re.compile(
    r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]{0,40}\]"
)
# Combining marks; `unicodedata` sorts fewer fast.
_LONG_RUN = 32
# Characters that are composed at once, while the GIL is held.
_PIECE_CHARS = 65_536
_PIECE_START = re.compile(
    "[\x00-\x7f\u1100-\u1112\u3041-\u3096\u30a1-\u30fa\u3400-\u9fff\uac00-\ud7a3]"
)
"""Letters and ideographs that never change with what stands before them: a piece may start there."""
# Where Unicode has combining marks that are sorted.
_MARKS = range(0x300, 0x20000)
_SEPARATOR = b"\x1f"
# Own, chain, index (24 bits) with flags.
MARK = struct.Struct("<16s16sI")


class EphemeralMatcher:
    """Recognises ephemeral messages, which a client adds to one request and removes from the next.

    OpenClaw ends every request with such a user message. It is neither a reaction nor part of the history.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._is_context = ClientContext(patterns)

    def __call__(self, message: Message) -> bool:
        if message.get("role") not in ("user", "system", "developer"):
            return False
        return self._is_context(message_text(message))


def message_text(message: Message) -> str:
    """Return the text of a message, its parts joined: of an image its digest, of other parts canonical JSON."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(p) for p in content)
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if (digest := image_digest(part)) is not None:
        return f"[image {digest}]"
    return json.dumps(part, sort_keys=True, ensure_ascii=False)


def normalise_text(text: str) -> str:
    """Return the text in NFC, with LF line ends and without outer white space."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return compose_text(text).strip()


def compose_text(text: str) -> str:
    """Return the text in Unicode's normal form C, in about linear time, and in pieces.

    `unicodedata` sorts the combining marks behind a character by insertion, while it holds the GIL: 65 kB of them take
    seconds, megabytes hours. So a long run of marks is sorted before.
    """
    if text.isascii() or len(text) <= _PIECE_CHARS:
        return _compose_piece(text)
    pieces = []
    start = 0
    while start < len(text):
        cut = _PIECE_START.search(text, start + _PIECE_CHARS)
        end = len(text) if cut is None else cut.start()
        pieces.append(_compose_piece(text[start:end]))
        start = end
    return "".join(pieces)


def _compose_piece(text: str) -> str:
    # Also fast: it finds wrong orders without sorting.
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text
    # A pattern of all marks takes ten times as long for each character.
    present = _mark_characters().intersection(text)
    if present:
        text = re.sub(f"[{''.join(sorted(present))}]{{{_LONG_RUN},}}", _sort_marks, text)
    return unicodedata.normalize("NFC", text)


def _sort_marks(run: re.Match[str]) -> str:
    """Return the marks in canonical order: those of one combining class stay in the order in which they came."""
    marks = run[0]
    by_class = dict[int, list[str]]()
    parts = {character: unicodedata.normalize("NFD", character) for character in set(marks)}
    if any(character != part for character, part in parts.items()):
        marks = "".join(map(parts.__getitem__, marks))
    for mark in set(marks):
        by_class.setdefault(unicodedata.combining(mark), []).append(mark)
    return "".join(
        _keep_characters(marks, same_class) for _, same_class in sorted(by_class.items())
    )


def _keep_characters(text: str, characters: Sequence[str]) -> str:
    return (
        characters[0] * text.count(characters[0])
        if len(characters) == 1
        else "".join(re.findall(f"[{''.join(characters)}]+", text))
    )


@cache
def _mark_characters() -> frozenset[str]:
    """Return the characters that are marks of a combining class other than 0, or consist of such."""
    decomposed = ((chr(code), unicodedata.normalize("NFD", chr(code))) for code in _MARKS)
    return frozenset(
        character for character, parts in decomposed if unicodedata.combining(parts[0])
    )


def visible_text(message: Message) -> str:
    """Return the normalised text of a message without reasoning and without text that its client added."""
    text = message_text(message)
    role = message.get("role")
    if role == "assistant" and "</think>" in text:
        text = _REASONING.sub("", text)
    elif role == "user":
        text = strip_client_text(text)
    return normalise_text(text)


def strip_client_text(text: str) -> str:
    """Return the text of a user message without the parts that its client added."""
    if "<" in text:
        text = strip_added_text(text)
    if "[OpenClaw " in text:
        text = _WAKE.sub("", text)
    if "[Queued user message" in text:
        text = _remove_matches(_CONTINUE_TASK, _QUEUED_MESSAGE.sub("", text), last=True)
    return _remove_matches(_RUNTIME, text) if "Runtime: agent=" in text else text


def hashed_text(message: Message) -> str:
    """Return the text that the message's hash covers: `visible_text` without OpenClaw's time stamp; JSON canonical;
    of a reply no blank lines."""
    return _hashed_text(message, visible_text(message))


def _hashed_text(message: Message, visible: str) -> str:
    if message.get("role") == "user":
        return strip_time_stamp(visible)
    if message.get("role") == "assistant" and visible[:1] + visible[-1:] in ("{}", "[]"):
        # Some clients parse a reply and indent it in another way.
        return _canonical_arguments(visible)
    if message.get("role") == "assistant" and "\n" in visible:
        # Clients that show a reply as Markdown add and remove blank lines, and white space at the ends of lines.
        return "\n".join(line.rstrip() for line in visible.split("\n") if line.strip())
    return visible


def strip_time_stamp(text: str) -> str:
    """Return the text without the time stamp that OpenClaw puts before it."""
    stamp = _TIME_STAMP.match(text)
    return text[stamp.end() :].lstrip() if stamp else text


def unstamped_text(message: Message) -> str:
    """Return the text of a message without outer white space and without OpenClaw's time stamp."""
    return strip_time_stamp(message_text(message).strip())


def _remove_matches(pattern: re.Pattern[str], text: str, *, last: bool = False) -> str:
    r"""Remove each match and the white space before it; with `last` only a match at the end of the text.

    The patterns do not start with `\s*`, since that scans a run of white space once from each of its positions.
    """
    parts = []
    at = 0
    end = len(text.rstrip())
    for match in pattern.finditer(text):
        if last and match.end() < end:
            continue
        parts.append(text[at : match.start()].rstrip())
        at = len(text) if last else match.end()
    return "".join([*parts, text[at:]])


def openclaw_session(message: Message) -> tuple[str, str] | None:
    """Return (session, agent) from the end of a session's first OpenClaw user message, or None."""
    if message.get("role") != "user" or "Runtime: agent=" not in (text := message_text(message)):
        return None
    end = len(text.rstrip())
    matches = [m for m in _RUNTIME.finditer(text) if m.end() == end]
    return (matches[-1]["session"], matches[-1]["agent"]) if matches else None


def hash_session(session: str) -> str:
    """Return the id under which a redacted exchange stores its session: the same for the same session."""
    return (
        "redacted-" + blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    )


def _canonical_arguments(raw: Any) -> str:
    """Return tool arguments as canonical JSON; text that is not JSON is only normalised."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw, parse_float=_parse_number)
        except (ValueError, RecursionError):
            return normalise_text(str(raw))
    return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _parse_number(literal: str) -> float:
    """Parse a number as JavaScript does, which has no integer type: 2.0 becomes 2."""
    value = float(literal)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _hashed_fields(message: Message, visible: str) -> list[str]:
    role = str(message.get("role", ""))
    fields = [_ROLES.get(role, role), _hashed_text(message, visible)]
    for _, name, arguments in _read_calls(message):
        fields += [name, arguments]
    return fields


def _read_calls(message: Message) -> Iterator[tuple[Any, str, str]]:
    """Yield (id, name, canonical arguments) of each tool call."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        id_, function = (
            (call.get("id"), call.get("function")) if isinstance(call, dict) else (None, None)
        )
        if not isinstance(function, dict):
            function = {}
        yield (
            id_,
            str(function.get("name", "")),
            _canonical_arguments(function.get("arguments", "")),
        )


def canonical_calls(message: Message) -> dict[str, tuple[str, str]]:
    """Return tool call id -> (name, canonical arguments) for the calls that have an id."""
    return {
        id_: (name, arguments)
        for id_, name, arguments in _read_calls(message)
        if id_ and isinstance(id_, str)
    }


def tool_call_ids(message: Message) -> list[str]:
    """Return the ids of a message's tool calls."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return []
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    return [id_ for id_ in ids if id_ and isinstance(id_, str)]


def own_hash(message: Message, key: bytes) -> bytes:
    """Return the keyed hash [16 bytes] of one canonical message."""
    return _own_hash(message, visible_text(message), key)


def _own_hash(message: Message, visible: str, key: bytes) -> bytes:
    digest = blake2b(digest_size=16, key=key)
    for value in _hashed_fields(message, visible):
        raw = value.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + _SEPARATOR + raw)
    return digest.digest()


def extend_chain(chain: bytes, message_hash: bytes, key: bytes) -> bytes:
    """Return the chained hash [16 bytes] after one more message."""
    return blake2b(chain + message_hash, digest_size=16, key=key).digest()


CHAIN_ROOT = bytes(16)


def mark_message(message: Message, *, index: int, chain: bytes, key: bytes) -> Mark:
    """Return the mark of a message that follows a history with the chained hash `chain`."""
    visible = visible_text(message)
    message_hash = _own_hash(message, visible, key)
    role = str(message.get("role", ""))
    return Mark(
        index=index,
        role=_ROLES.get(role, role),
        own=message_hash,
        chain=extend_chain(chain, message_hash, key),
        distinctive=len(visible) >= DISTINCTIVE_CHARS,
    )


def mark_messages(
    messages: Sequence[Message],
    key: bytes,
    transient: EphemeralMatcher,
    *,
    known: Sequence[Mark] = (),
    upto: int = 0,
) -> tuple[Mark, ...]:
    """Return the marks of all non-ephemeral messages, in order. `known`: marks of the first `upto` messages."""
    out = list(known)
    chain = out[-1].chain if out else CHAIN_ROOT
    for index in range(upto, len(messages)):
        message = messages[index]
        if transient(message):
            continue
        out.append(mark_message(message, index=index, chain=chain, key=key))
        chain = out[-1].chain
    return tuple(out)


def reaction_signature(reaction: Sequence[Mark]) -> bytes | None:
    """Return the hash [16 bytes] of the messages in order; results of parallel tool calls may come in any order."""
    if not reaction:
        return None
    runs = [
        [m.own for m in run]
        for _, run in groupby(reaction, key=lambda m: m.role == "tool" or id(m))
    ]
    return blake2b(
        b"".join(message_hash for run in runs for message_hash in sorted(run)), digest_size=16
    ).digest()


_ROLE_CODES = ("system", "user", "assistant", "tool", "")


class MarkPacker:
    """`pack_marks` for successive histories; a history that extends the previous one reuses its bytes."""

    def __init__(self) -> None:
        self._items: tuple[Mark, ...] = ()
        self._raw = b""

    def __call__(self, items: tuple[Mark, ...]) -> bytes:
        known = self._raw if items[: len(self._items)] == self._items else b""
        self._items = items
        self._raw = known + pack_marks(items[len(known) // MARK.size :])
        return self._raw


def pack_marks(items: Sequence[Mark]) -> bytes:
    """Return marks as bytes for the store, 36 bytes each."""
    out = bytearray()
    for m in items:
        role = _ROLE_CODES.index(m.role) if m.role in _ROLE_CODES else len(_ROLE_CODES) - 1
        out += MARK.pack(m.own, m.chain, m.index << 8 | role << 1 | m.distinctive)
    return bytes(out)


def unpack_marks(raw: bytes) -> tuple[Mark, ...]:
    """Return the marks that `pack_marks` packed; a role other than the four common ones becomes ""."""
    if len(raw) % MARK.size:
        raise ValueError(f"marks: expected a multiple of {MARK.size} bytes, got {len(raw)}")
    return tuple(
        Mark(
            index=tail >> 8,
            role=_ROLE_CODES[tail >> 1 & 0x7F],
            own=message_hash,
            chain=chain,
            distinctive=bool(tail & 1),
        )
        for message_hash, chain, tail in MARK.iter_unpack(raw)
    )
