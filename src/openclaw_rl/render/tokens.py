"""Text to token ids, remembering what was tokenised before."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from openclaw_rl.errors import ModelError
from openclaw_rl.render.model_files import ModelFiles
from openclaw_rl.types import Ids

log = logging.getLogger(__name__)

CACHE_CHARS = 16 * 2**20
_PROBE = " a b\n<x>\n\n  c, d'll 12345 \u00e9\u4f60\U0001f600 \t"


class Tokens:
    """A tokenizer whose text between special tokens is tokenised once and remembered (least recently used out).

    Special tokens cut the text before anything else looks at it, so the pieces between them are independent: the ids
    equal those of the whole text. Where a tokenizer is not like that (`segmented` is False), nothing is cut.
    Safe to call from several threads.
    """

    def __init__(self, files: ModelFiles, cache_chars: int = CACHE_CHARS) -> None:
        self.tokenizer = _load(files)
        self.special_ids: dict[str, int] = _splitters(self.tokenizer)
        self._pattern = re.compile(
            "(" + "|".join(re.escape(t) for t in sorted(self.special_ids, key=len, reverse=True)) + ")"
        )
        self._cache: OrderedDict[str, Ids] = OrderedDict()
        self._room = cache_chars
        self._lock = threading.Lock()
        self.segmented = bool(self.special_ids) and self._is_segmented()
        if not self.segmented:
            log.info("this tokenizer is not independent between special tokens: prompts are tokenised whole")

    def _is_segmented(self) -> bool:
        if '"prepend_scheme": "first"' in json.dumps(json.loads(self.tokenizer.to_str()).get("pre_tokenizer")):
            return False
        for token in self.special_ids:
            text = f"{_PROBE}{token}{_PROBE}{token}{token}\n{_PROBE}"
            if not np.array_equal(self._encode_pieces(self.split(text)), self._encode(text)):
                return False
        return True

    def split(self, text: str) -> list[str]:
        """Text and special tokens in turn: even places are text, odd ones special tokens."""
        return self._pattern.split(text)

    def encode(self, text: str) -> Ids:
        """[n] ids; special tokens in the text are special."""
        return self._encode_pieces(self.split(text)) if self.segmented else self._encode(text)

    def new_chars(self, text: str) -> int:
        """How many characters of `text` would really have to be tokenised."""
        if not self.segmented:
            return len(text)
        return sum(len(piece) for piece in self.split(text)[::2] if piece not in self._cache)

    def _encode(self, text: str) -> Ids:
        # encode_batch lets other threads run, encode does not.
        if len(text) > 1024:
            return np.array(self.tokenizer.encode_batch([text], add_special_tokens=False)[0].ids, dtype=np.int32)
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def _encode_pieces(self, pieces: list[str]) -> Ids:
        out: list[Ids] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                out.append(self._special(piece))
            elif piece:
                out.append(self._piece(piece))
        return np.concatenate(out) if out else np.empty(0, dtype=np.int32)

    def _special(self, token: str) -> Ids:
        return np.array([self.special_ids[token]], dtype=np.int32)

    def _piece(self, text: str) -> Ids:
        with self._lock:
            ids = self._cache.get(text)
            if ids is not None:
                self._cache.move_to_end(text)
                return ids
        ids = self._encode(text)
        with self._lock:
            if text not in self._cache:
                self._cache[text] = ids
                self._room -= len(text)
            while self._room < 0:
                self._room += len(self._cache.popitem(last=False)[0])
        return ids


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
    """Tokens that only tokenizer_config.json names belong to the tokenizer too."""
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
    """Added tokens that cut the raw text; {} when one of them also takes in its surroundings."""
    added = {i: t for i, t in tokenizer.get_added_tokens_decoder().items() if not t.normalized}
    if any(t.lstrip or t.rstrip or t.single_word for t in added.values()):
        return {}
    return {t.content: i for i, t in added.items() if t.content}
