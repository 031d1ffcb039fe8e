"""Grammar-constrained replies (llguidance's Lark): a mask of the tokens that may come next, per row.

Compiling takes up to a second and releases the GIL, so it runs in a helper thread. A mask takes well under a
millisecond for usual schemas. The limits bound both. Shape legend: V vocabulary.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import llguidance
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import cached_file

from openclaw_rl.errors import GrammarError

KEPT = 32  # compiled grammars to cache: an agent sends the same one in every turn
_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=20_000,  # the default of 2,000 rejects an object with some hundred optional properties
    max_grammar_size=200_000,  # symbols
    initial_lexer_fuel=2_000_000,  # 50,000 take about a millisecond
    step_lexer_fuel=100_000,  # 14,000 take about a millisecond
    step_max_items=30_000,  # 20,000 take about a millisecond
    max_lexer_states=100_000,
    verbose_errors=False,
)
_PLACE = re.compile(r"^at \d+\(\d+\): ")  # a position in the grammar that the gateway wrote
_SHOWN = re.compile(r"\n\s*\d+ \| |<state>|<non-verbose/>|<grammar>")  # the rest of the message quotes that grammar
_OURS = {"NoExtensionBias": "no text can match it, for example because a $ref refers only to itself"}


class Guide:
    """Grammar state of one reply. `failure`: why no token can follow; None while one can."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab: int, stop: Iterable[int], eos: Iterable[int]) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._stop = np.array(sorted(set(stop)), dtype=np.int64)
        self._no_end = np.array(sorted(set(eos) - set(stop)), dtype=np.int64)  # EOS tokens that do not stop it
        self.trouble: str | None = None

    def masked(self, logits_V: Tensor) -> Tensor:
        """Set disallowed tokens to minus infinity. Stop tokens are allowed where the grammar accepts an end."""
        allowed_V = self._allowed()
        if not allowed_V.any():
            self.trouble = self._why()
            return logits_V
        return logits_V.masked_fill(~torch.from_numpy(allowed_V).to(logits_V.device), -torch.inf)

    def _allowed(self) -> NDArray[np.bool_]:
        matcher = self._matcher
        if matcher.is_stopped():
            allowed_V = np.zeros(self._vocab, dtype=np.bool_)
        else:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed_V = np.unpackbits(bits, bitorder="little", count=self._vocab).view(np.bool_)
            allowed_V[self._no_end] = False
        if matcher.is_accepting():
            allowed_V[self._stop] = True
        return allowed_V

    def _why(self) -> str:
        reason = self._matcher.get_error() or self._matcher.stop_reason()
        return f"no token of the vocabulary can follow in the required format ({_words(reason)})"

    def take(self, token: int) -> None:
        """Advance the grammar by the sampled token."""
        if token not in self._stop and not self._matcher.consume_token(token):
            self.trouble = self._why()


class Grammars:
    """Grammar compiler for one tokenizer. Thread-safe: a lock serialises the calls."""

    def __init__(self, tokenizer: Path, vocab: int) -> None:
        self._path, self._vocab = tokenizer, vocab
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._known: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def find(model: str, vocab: int) -> Grammars | None:
        """Return a compiler for `model` (a folder or hub id), or None if it has no tokenizer.json."""
        found = cached_file(model, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        return Grammars(Path(found), vocab) if found else None

    def guide(self, grammar: str, stop: Iterable[int]) -> Guide:
        """Return the initial state of `grammar`. Raise `GrammarError` if it does not compile within the limits."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
            return Guide(self._matcher(grammar, self._tokenizer), self._vocab, stop, self._tokenizer.eos_tokens)

    def _matcher(self, grammar: str, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        if grammar not in self._known:
            made = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
            made.compute_bitmask()  # the first mask is the slowest, and some grammars fail only here
            if made.is_error():
                raise GrammarError(f"the format cannot be enforced: {_words(made.get_error())}")
            self._known[grammar] = made
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(grammar)
        return self._known[grammar].deep_copy()

    def _load(self) -> llguidance.LLTokenizer:
        try:
            return llguidance.LLTokenizer(str(self._path), n_vocab=self._vocab)
        except ValueError as error:
            raise GrammarError(f"formats cannot be enforced with this model's tokenizer: {error}") from None


def _words(error: str) -> str:
    """Return llguidance's reason as one line, limited to the client's schema."""
    said = _PLACE.sub("", _SHOWN.split(error.strip(), maxsplit=1)[0])
    lines = [line.strip() for line in said.splitlines()]
    words = " ".join(line for line in lines if line.strip("^"))  # drop the ^ marks below a regex
    return _OURS.get(words, words)[:500]
