"""Grammar-constrained replies (llguidance's Lark): a mask of the tokens that may come next, per row.

Compiling takes up to a second and releases the GIL, so it runs in a helper thread. A mask takes well under a
millisecond for usual schemas. The limits bound both. Shape legend: V vocabulary.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from pathlib import Path

import llguidance
import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import cached_file

from openclaw_rl.errors import GrammarError

# Compiled grammars to cache: an agent sends the same one in every turn.
MAX_COMPILED_GRAMMARS = 32
_LIMITS = llguidance.LLParserLimits(
    # The default of 2,000 rejects an object with some hundred optional properties.
    max_items_in_row=20_000,
    # Symbols.
    max_grammar_size=200_000,
    # 50,000 take about a millisecond.
    initial_lexer_fuel=2_000_000,
    # 14,000 take about a millisecond.
    step_lexer_fuel=100_000,
    # 20,000 take about a millisecond.
    step_max_items=30_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
# A position in the grammar that the gateway wrote.
_GRAMMAR_POSITION = re.compile(r"^at \d+\(\d+\): ")
# Start of a quote of that grammar.
_GRAMMAR_QUOTE = re.compile(r"\n[ \t]*\d+ \| |<state>|<non-verbose/>|<grammar>")
_CLEARER_REASONS = {
    "NoExtensionBias": "no text can match it, for example because a $ref refers only to itself"
}


class GrammarState:
    """Grammar state of one reply. `failure`: why no token can follow; None while one can."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab: int, stop: Iterable[int], eos: Iterable[int]
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab
        self._stop_ids = np.array(sorted(set(stop)), dtype=np.int64)
        # EOS tokens that do not stop it.
        self._disallowed_eos = np.array(sorted(set(eos) - set(stop)), dtype=np.int64)
        self.failure: str | None = None

    def mask_logits(self, logits_V: Tensor) -> Tensor:
        """Set disallowed tokens to minus infinity. Stop tokens are allowed where the grammar accepts an end."""
        allowed_V = self._allowed_tokens()
        if not allowed_V.any():
            self.failure = self._failure_reason()
            return logits_V
        return logits_V.masked_fill(~torch.from_numpy(allowed_V).to(logits_V.device), -torch.inf)

    def _allowed_tokens(self) -> NDArray[np.bool_]:
        matcher = self._matcher
        if matcher.is_stopped():
            allowed_V = np.zeros(self._vocab_size, dtype=np.bool_)
        else:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed_V = np.unpackbits(bits, bitorder="little", count=self._vocab_size).view(
                np.bool_
            )
            allowed_V[self._disallowed_eos] = False
        if matcher.is_accepting():
            allowed_V[self._stop_ids] = True
        return allowed_V

    def _failure_reason(self) -> str:
        reason = self._matcher.get_error() or self._matcher.stop_reason()
        return f"no token of the vocabulary can follow in the required format ({_client_reason(reason)})"

    def accept_token(self, token: int) -> None:
        """Advance the grammar by the sampled token."""
        if token not in self._stop_ids and not self._matcher.consume_token(token):
            self.failure = self._failure_reason()


class GrammarCompiler:
    """Grammar compiler for one tokenizer. Thread-safe: a lock serialises the calls."""

    def __init__(self, tokenizer: Path, vocab: int) -> None:
        self._tokenizer_path = tokenizer
        self._vocab_size = vocab
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: LRUCache[str, llguidance.LLMatcher] = LRUCache(MAX_COMPILED_GRAMMARS)
        self._lock = threading.Lock()

    @staticmethod
    def for_model(model: str, vocab: int) -> GrammarCompiler | None:
        """Return a compiler for `model` (a folder or hub id), or None if it has no tokenizer.json."""
        path = cached_file(model, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        return GrammarCompiler(Path(path), vocab) if path else None

    def initial_state(self, grammar: str, stop: Iterable[int]) -> GrammarState:
        """Return the initial state of `grammar`. Raise `GrammarError` if it does not compile within the limits."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return GrammarState(
                self._new_matcher(grammar, self._tokenizer),
                self._vocab_size,
                stop,
                self._tokenizer.eos_tokens,
            )

    def _new_matcher(self, grammar: str, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
            # The first mask is the slowest, and some grammars fail only here.
            matcher.compute_bitmask()
            if matcher.is_error():
                raise GrammarError(
                    f"the format cannot be enforced: {_client_reason(matcher.get_error())}"
                )
            self._compiled[grammar] = matcher
        return matcher.deep_copy()

    def _load_tokenizer(self) -> llguidance.LLTokenizer:
        try:
            return llguidance.LLTokenizer(str(self._tokenizer_path), n_vocab=self._vocab_size)
        except ValueError as error:
            raise GrammarError(
                f"formats cannot be enforced with this model's tokenizer: {error}"
            ) from None


def _client_reason(error: str) -> str:
    """Return llguidance's reason as one line, limited to the client's schema."""
    message = _GRAMMAR_POSITION.sub("", _GRAMMAR_QUOTE.split(error.strip(), maxsplit=1)[0])
    lines = [line.strip() for line in message.splitlines()]
    # Drop the ^ marks below a regex.
    reason = " ".join(line for line in lines if line.strip("^"))
    return _CLEARER_REASONS.get(reason, reason)[:500]
