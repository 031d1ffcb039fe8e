"""Decode token ids to text incrementally; a character is emitted only when it is complete."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from tokenizers import Tokenizer


def _byte_alphabet() -> dict[str, int]:
    """Return the byte-level BPE alphabet: printable bytes map to themselves, the others to code points from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(moved)}


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    return [p.get("type") for p in parts] == ["ByteLevel"]


class Detokenizer:
    """Map token ids to text. `stop_token_ids`, and special tokens that are not in `kept`, produce no text."""

    def __init__(
        self, tokenizer: Tokenizer, stop_token_ids: Iterable[int], visible: Collection[str] = ()
    ) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.skipped_ids = {
            i for i, t in added.items() if t.special and t.content not in visible
        } | set(stop_token_ids)
        self._bytes_table = self._build_bytes_table() if _is_byte_level(tokenizer) else None

    def _build_bytes_table(self) -> list[bytes]:
        vocab = self.tokenizer.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocab.values()) + 1)
        alphabet = _byte_alphabet()
        for token, i in vocab.items():
            if i not in self.skipped_ids:
                table[i] = _token_bytes(token, alphabet)
        return table

    @property
    def is_context_free(self) -> bool:
        """Whether a token's text never depends on the tokens around it."""
        return self._bytes_table is not None

    def new_stream(self) -> TextStream:
        return (
            ByteStream(self._bytes_table) if self._bytes_table is not None else WindowStream(self)
        )

    def decode_token(self, i: int) -> tuple[str, list[int]]:
        """Return one token as (text, UTF-8 bytes), for the client's logprobs."""
        if self._bytes_table is not None:
            raw = self._bytes_table[i] if 0 <= i < len(self._bytes_table) else b""
            return raw.decode("utf-8", "replace"), list(raw)
        text = str(self.tokenizer.decode([i], skip_special_tokens=False))
        return text, list(text.encode("utf-8"))


def _token_bytes(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[c] for c in token])
    except KeyError:
        # An added token may contain any character: it is literal text.
        return token.encode("utf-8")


# Not `tokenizers.decoders.DecodeStream`: on invalid UTF-8 it raises for byte-fallback vocabularies and takes quadratic
# time, it cannot flush a cut character, and `decode_token` needs the bytes of each token anyway.
class TextStream(Protocol):
    """Incremental decoder: the results of `push` and `flush`, joined, are the text of all pushed ids."""

    def push(self, ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class ByteStream:
    """Incremental decoder for byte-level tokenizers: looks up bytes in a table, emits complete characters."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        table = self._table
        n = len(self._table)
        return self._decoder.decode(b"".join([table[i] for i in ids if 0 <= i < n]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowStream:
    """Incremental decoder for all other tokenizers: decodes a short window again and returns the new text.

    The window includes tokens already emitted, because some decoders treat the first token differently; their text
    is cut off again. Text that ends in an incomplete character is held back.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._tokenizer = detokenizer.tokenizer
        self._skipped = detokenizer.skipped_ids
        self._ids: list[int] = []
        # Index in `_ids` where the window starts.
        self._window_start = 0
        # Number of ids whose text was emitted.
        self._emitted = 0

    def push(self, ids: Sequence[int]) -> str:
        self._ids += [i for i in ids if i not in self._skipped]
        before = self._decode_window(self._emitted)
        now = self._decode_window(len(self._ids))
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._window_start = self._emitted
        self._emitted = len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        before = self._decode_window(self._emitted)
        now = self._decode_window(len(self._ids))
        self._window_start = self._emitted = len(self._ids)
        return now[len(before) :]

    def _decode_window(self, end: int) -> str:
        return str(
            self._tokenizer.decode(self._ids[self._window_start : end], skip_special_tokens=False)
        )
