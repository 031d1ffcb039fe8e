"""Tokenizer with a cache of the text between special tokens."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, normalizers

from openclaw_rl.common.large_requests import stop_if_cancelled
from openclaw_rl.errors import ModelError
from openclaw_rl.render.caches import TwoGenerationLRU
from openclaw_rl.render.control_tokens import LITERAL_MARK, is_control_token
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.types import Ids

log = logging.getLogger(__name__)

CACHE_CHARS = 16 * 2**20
# Characters that are tokenized at once where only a limit is checked.
_SLICE_CHARS = 32 * 1024
# Tokens that joining two slices may save; a mark may be cut in two.
_MAX_MERGED_TOKENS = 8 + len(LITERAL_MARK)
_PROBE_TEXT = " a b\n<x>\n\n  c, d'll 12345 \u00e9\u4f60\U0001f600 \t"


class CachedTokenizer:
    """Tokenizer that tokenizes the text between special tokens once and caches the ids. Thread-safe.

    Special tokens split the text before any other step, so the pieces between them are independent: their joined ids
    equal those of the whole text. A tokenizer without this property (`is_segmented` is False) never splits text.
    `control_ids`: ids of the special tokens and tags. Marks in a text (`control_tokens`) are removed behind that split.
    """

    def __init__(self, files: ModelFiles, cache_chars: int = CACHE_CHARS) -> None:
        self.backend = _split_raw_text(_load_tokenizer(files))
        self.control_ids: dict[str, int] = {
            t.content: i
            for i, t in self.backend.get_added_tokens_decoder().items()
            if is_control_token(t.content, special=t.special)
        }
        self._control_id_set = frozenset(self.control_ids.values())
        first = normalizers.Replace(LITERAL_MARK, "")
        then = self.backend.normalizer
        self.backend.normalizer = first if then is None else normalizers.Sequence([first, then])
        self.special_ids: dict[str, int] = _find_splitting_tokens(self.backend)
        self._specials = {t: _pack_ids([i]) for t, i in self.special_ids.items()}
        self._pattern = re.compile(
            "("
            + "|".join(re.escape(t) for t in sorted(self.special_ids, key=len, reverse=True))
            + ")"
        )
        self._cache: TwoGenerationLRU[str, bytes] = TwoGenerationLRU(
            cache_chars, lambda text, ids: len(text)
        )
        self.is_segmented = bool(self.special_ids) and self._check_segmented()
        if not self.is_segmented:
            log.info(
                "tokenizer: text between special tokens is not independent, so prompts are tokenized whole"
            )

    def _check_segmented(self) -> bool:
        pre_tokenizer = json.loads(self.backend.to_str()).get("pre_tokenizer")
        if '"prepend_scheme": "first"' in json.dumps(pre_tokenizer):
            return False
        for token in self.special_ids:
            text = _probe_text(token)
            if self.join_ids(self._pattern.split(text)).tobytes() != self._encode_uncached(text):
                return False
        return True

    def can_be_text(self, token: str) -> bool:
        """Whether a mark makes plain text of a control token."""
        marked = token[0] + LITERAL_MARK + token[1:]
        ids = np.frombuffer(self._encode_uncached(f"{marked} a {marked} b{marked}"), dtype=np.int32)
        return self._control_id_set.isdisjoint(ids.tolist())

    def split_text(self, text: str) -> list[str]:
        """Split text into pieces for `join_ids`: text and special tokens alternate. One piece if not segmented."""
        return self._pattern.split(text) if self.is_segmented else [text]

    def is_special_at(self, text: str, place: int) -> bool:
        """Whether a special token starts at `place`."""
        return self._pattern.match(text, place) is not None

    def find_next_special(self, text: str, place: int) -> int:
        """Return the offset of the next special token at or after `place`; -1 if not found."""
        match = self._pattern.search(text, place)
        return -1 if match is None else match.start()

    def count_uncached_chars(self, pieces: Sequence[str]) -> int:
        """Return the number of characters in pieces that are not cached."""
        known = self._specials
        cached = self._cache.get
        return sum(len(piece) for piece in pieces if piece not in known and cached(piece) is None)

    def join_ids(self, pieces: Sequence[str]) -> Ids:
        """Return the ids [n] of the pieces; special tokens become their special ids."""
        specials = self._specials
        cached = self._cache.get
        encoded = [specials.get(p) or cached(p) or self._encode_piece(p) for p in pieces]
        return np.frombuffer(b"".join(encoded), dtype=np.int32)

    def encode(self, text: str) -> Ids:
        """Return the ids [n] of the text; special tokens in it become their special ids."""
        return self.join_ids(self.split_text(text))

    def count_beyond(self, texts: Iterable[str], limit: int) -> int | None:
        """Return a lower bound of the tokens in `texts` as soon as it exceeds `limit`; None if it never does.

        Long texts are tokenized in slices, and nothing is cached.
        """
        count = 0
        for text in texts:
            for start in range(0, len(text), _SLICE_CHARS):
                count += len(self._encode_uncached(text[start : start + _SLICE_CHARS])) // 4
                count -= _MAX_MERGED_TOKENS if start else 0
                if count > limit:
                    return count
        return None

    @cached_property
    def longest_token_bytes(self) -> int | None:
        """Upper bound of the bytes of text that one token can stand for; None if there is no bound."""
        model = self.backend.model
        if getattr(model, "unk_token", None) is not None and not getattr(
            model, "byte_fallback", False
        ):
            # A word of any length can become the unknown token.
            return None
        return max(len(token.encode()) for token in self.backend.get_vocab(with_added_tokens=True))

    def _encode_piece(self, text: str) -> bytes:
        if not text:
            return b""
        ids = self._encode_uncached(text)
        self._cache.put(text, ids)
        return ids

    def _encode_uncached(self, text: str) -> bytes:
        stop_if_cancelled()
        # encode_batch releases the GIL, encode does not.
        if len(text) > 1024:
            return _pack_ids(self.backend.encode_batch([text], add_special_tokens=False)[0].ids)
        return _pack_ids(self.backend.encode(text, add_special_tokens=False).ids)


def _pack_ids(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def _load_tokenizer(files: ModelFiles) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(files.tokenizer_file))
    except Exception as error:
        # The library raises bare Exception for every broken file.
        raise ModelError(
            f"{files.tokenizer_file}: cannot be read as a tokenizer: {error}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for wanted, entry in (files.tokenizer_config.get("added_tokens_decoder") or {}).items():
        _add_token(tokenizer, int(wanted), entry, files)
    return tokenizer


def _add_token(tokenizer: Tokenizer, wanted: int, entry: dict[str, Any], files: ModelFiles) -> None:
    """Add a token that only tokenizer_config.json lists."""
    content = str(entry["content"])
    if tokenizer.token_to_id(content) is not None:
        return
    flags = {
        k: bool(entry[k])
        for k in ("lstrip", "rstrip", "single_word", "normalized", "special")
        if k in entry
    }
    tokenizer.add_tokens([AddedToken(content, **flags)])
    if tokenizer.token_to_id(content) != wanted:
        raise ModelError(
            f"{files.folder}: tokenizer_config.json gives {content!r} the id {wanted}, tokenizer.json would give it "
            f"{tokenizer.token_to_id(content)}. The two files do not belong together."
        )


def _probe_text(token: str) -> str:
    return f"{_PROBE_TEXT}{token}{_PROBE_TEXT}{token}{token}\n{_PROBE_TEXT}"


def _late_control_tokens(tokenizer: Tokenizer) -> set[str]:
    """Return the control tokens that are sought in the normalised text."""
    late: set[str] = set()
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.normalized and is_control_token(token.content, special=token.special):
            late.add(token.content)
    return late


def _split_raw_text(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that seeks control tokens in the raw text, before it normalises it and removes marks.

    Returns `tokenizer` if that changes the ids of a probe: its normaliser then acts on the text around the tokens.
    """
    late = _late_control_tokens(tokenizer)
    if not late:
        return tokenizer
    raw = json.loads(tokenizer.to_str())
    for entry in raw["added_tokens"]:
        if entry["content"] in late:
            entry["normalized"] = False
    changed = Tokenizer.from_str(json.dumps(raw))
    probes = [_probe_text(token) for token in late]
    return changed if _encode_all(tokenizer, probes) == _encode_all(changed, probes) else tokenizer


def _encode_all(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [list(encoding.ids) for encoding in encodings]


def _find_splitting_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the added tokens that split the raw text, with ids; {} if one also consumes adjacent characters."""
    added = {i: t for i, t in tokenizer.get_added_tokens_decoder().items() if not t.normalized}
    if any(t.lstrip or t.rstrip or t.single_word for t in added.values()):
        return {}
    return {t.content: i for i, t in added.items() if t.content}
