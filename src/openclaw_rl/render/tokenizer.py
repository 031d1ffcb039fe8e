"""Tokenizer with a cache of the text between special tokens."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from openclaw_rl.errors import ModelError
from openclaw_rl.render.caches import Recent
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.types import Ids

log = logging.getLogger(__name__)

CACHE_CHARS = 16 * 2**20
_PROBE = " a b\n<x>\n\n  c, d'll 12345 \u00e9\u4f60\U0001f600 \t"


class Tokens:
    """Tokenizer that tokenizes the text between special tokens once and caches the ids. Thread-safe.

    Special tokens split the text before any other step, so the pieces between them are independent: their joined ids
    equal those of the whole text. A tokenizer without this property (`is_segmented` is False) never splits text.
    """

    def __init__(self, files: ModelFiles, cache_chars: int = CACHE_CHARS) -> None:
        self.tokenizer = _load(files)
        self.special_ids: dict[str, int] = _splitters(self.tokenizer)
        self._specials = {t: _packed([i]) for t, i in self.special_ids.items()}
        self._pattern = re.compile(
            "(" + "|".join(re.escape(t) for t in sorted(self.special_ids, key=len, reverse=True)) + ")"
        )
        self._cache: Recent[str, bytes] = Recent(cache_chars, lambda text, ids: len(text))
        self.segmented = bool(self.special_ids) and self._is_segmented()
        if not self.segmented:
            log.info("tokenizer: text between special tokens is not independent, so prompts are tokenized whole")

    def _is_segmented(self) -> bool:
        if '"prepend_scheme": "first"' in json.dumps(json.loads(self.tokenizer.to_str()).get("pre_tokenizer")):
            return False
        for token in self.special_ids:
            text = f"{_PROBE}{token}{_PROBE}{token}{token}\n{_PROBE}"
            if self.join(self._pattern.split(text)).tobytes() != self._encode(text):
                return False
        return True

    def split(self, text: str) -> list[str]:
        """Split text into pieces for `join_ids`: text and special tokens alternate. One piece if not segmented."""
        return self._pattern.split(text) if self.segmented else [text]

    def special_at(self, text: str, place: int) -> bool:
        """Whether a special token starts at `place`."""
        return self._pattern.match(text, place) is not None

    def next_special(self, text: str, place: int) -> int:
        """Return the offset of the next special token at or after `place`; -1 if not found."""
        found = self._pattern.search(text, place)
        return -1 if found is None else found.start()

    def new_chars(self, pieces: Sequence[str]) -> int:
        """Return the number of characters in pieces that are not cached."""
        known, cached = self._specials, self._cache.get
        return sum(len(piece) for piece in pieces if piece not in known and cached(piece) is None)

    def join(self, pieces: Sequence[str]) -> Ids:
        """Return the ids [n] of the pieces; special tokens become their special ids."""
        specials, cached = self._specials, self._cache.get
        found = [specials.get(p) or cached(p) or self._piece(p) for p in pieces]
        return np.frombuffer(b"".join(found), dtype=np.int32)

    def encode(self, text: str) -> Ids:
        """Return the ids [n] of the text; special tokens in it become their special ids."""
        return self.join(self.split(text))

    def _piece(self, text: str) -> bytes:
        if not text:
            return b""
        ids = self._encode(text)
        self._cache.put(text, ids)
        return ids

    def _encode(self, text: str) -> bytes:
        if len(text) > 1024:  # encode_batch releases the GIL, encode does not
            return _packed(self.tokenizer.encode_batch([text], add_special_tokens=False)[0].ids)
        return _packed(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _packed(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def _load(files: ModelFiles) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(files.tokenizer_file))
    except Exception as error:  # the library raises bare Exception for every broken file
        raise ModelError(f"{files.tokenizer_file}: cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for wanted, entry in (files.tokenizer_config.get("added_tokens_decoder") or {}).items():
        _add(tokenizer, int(wanted), entry, files)
    return tokenizer


def _add(tokenizer: Tokenizer, wanted: int, entry: dict[str, Any], files: ModelFiles) -> None:
    """Add a token that only tokenizer_config.json lists."""
    content = str(entry["content"])
    if tokenizer.token_to_id(content) is not None:
        return
    flags = {k: bool(entry[k]) for k in ("lstrip", "rstrip", "single_word", "normalized", "special") if k in entry}
    tokenizer.add_tokens([AddedToken(content, **flags)])
    if tokenizer.token_to_id(content) != wanted:
        raise ModelError(
            f"{files.folder}: tokenizer_config.json gives {content!r} the id {wanted}, tokenizer.json would give it "
            f"{tokenizer.token_to_id(content)}. The two files do not belong together."
        )


def _splitters(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the added tokens that split the raw text, with ids; {} if one also consumes adjacent characters."""
    added = {i: t for i, t in tokenizer.get_added_tokens_decoder().items() if not t.normalized}
    if any(t.lstrip or t.rstrip or t.single_word for t in added.values()):
        return {}
    return {t.content: i for i, t in added.items() if t.content}
