"""Hidden states of the base model, read behind all replies: in small chunks, while no reply needs the model.

Beside replies that leave no pause, one chunk runs in `BUSY_STEPS` of their steps, and in `LATE_BUSY_STEPS` if its
text has waited for `LATE_SECONDS`. So reading changes fewer than one in a hundred of the gaps between their tokens, and
texts are read all the same.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from openclaw_rl.engines.embedded.kv_cache import KVCache
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.prefix_cache import MIN_PREFIX_TOKENS, PrefixCache
from openclaw_rl.engines.embedded.sequence import (
    StateEvent,
    StateSequence,
    StatesFailed,
    StatesRead,
)
from openclaw_rl.errors import EngineError, is_out_of_memory
from openclaw_rl.types import StateRequest

BUSY_STEPS = 512
LATE_BUSY_STEPS = 128
"""Steps of replies for each chunk, if they leave no pause; the second number for a text that has waited long."""
LATE_SECONDS = 120.0
CHUNK_SECONDS = 0.2
"""Seconds that a chunk may take: so long a reply waits that begins meanwhile."""
MIN_CHUNK = 32
MAX_CHUNK = 512
"""Tokens. Smaller chunks would cost several times the processor time of a whole text."""
SHARED_TOKENS = 2048
"""Tokens of shared beginnings that are kept."""


class StateReader:
    """Reads texts one after the other. Call `step` between the steps of the engine while `has_work`."""

    def __init__(self, model: EmbeddedModel) -> None:
        self._model = model
        self._kv_cache = KVCache(model.layout)
        self._prefix_cache = PrefixCache(SHARED_TOKENS)
        self._waiting: deque[StateSequence] = deque()
        self._busy_steps = 0
        self._chunk = MIN_CHUNK

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def read(self, owner: Any, request: StateRequest) -> StateSequence:
        """Queue a text. Raise `EngineError` if it is empty, too long or has unknown ids, or for a wrong span."""
        self._check(request)
        layers = tuple(self._layer_at(depth) for depth in request.depths)
        seq = StateSequence(owner, request, layers)
        self._waiting.append(seq)
        return seq

    def cancel(self, seq: StateSequence) -> None:
        """Remove a text from the queue."""
        if seq in self._waiting:
            self._waiting.remove(seq)

    @torch.inference_mode()
    def step(self, *, is_busy: bool) -> list[StateEvent]:
        """Read one chunk; beside replies (`is_busy`) only once in many calls."""
        if not self._waiting or (is_busy and not self._may_interrupt()):
            return []
        self._busy_steps = 0
        seq = self._waiting[0]
        try:
            self._read_chunk(seq)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._waiting.popleft()
            self._prefix_cache.clear()
            self._kv_cache.free_memory()
            reason = "its states were not read, because memory ran out; try again later"
            return [StatesFailed(seq, reason)]
        if seq.read < len(seq.request.ids):
            return []
        self._waiting.popleft()
        out: list[StateEvent] = [StatesRead(seq, self._pooled_states(seq))]
        if not self._waiting:
            self._kv_cache.free_memory()
        return out

    def _may_interrupt(self) -> bool:
        self._busy_steps += 1
        is_late = time.monotonic() >= self._waiting[0].queued_at + LATE_SECONDS
        return self._busy_steps >= (LATE_BUSY_STEPS if is_late else BUSY_STEPS)

    def _read_chunk(self, seq: StateSequence) -> None:
        ids = seq.request.ids
        self._kv_cache.reserve(1, len(ids))
        if seq.read == 0:
            self._restore_prefix(seq)
        end = min(len(ids), seq.read + self._chunk)
        # The states of the shared beginning are stored as soon as they are complete.
        if seq.read < seq.request.shared:
            end = min(end, seq.request.shared)
        started = time.perf_counter()
        chunk_Q = torch.from_numpy(ids[seq.read : end].astype(np.int64)).to(self._model.device)
        self._model.adapters.route = None
        states_KQD = self._model.hidden_states(chunk_Q, seq.read, self._kv_cache, seq.layers)
        self._add_to_sums(seq, states_KQD)
        # On a GPU, this waits for the result.
        seconds = time.perf_counter() - started
        self._adapt_chunk(end - seq.read, seconds)
        seq.read = end
        if end == seq.request.shared and self._prefix_cache.is_cacheable(end):
            self._prefix_cache.add(None, ids[:end], self._kv_cache.row_states(0, end))

    def _restore_prefix(self, seq: StateSequence) -> None:
        """Copy the states of the shared beginning; none of its tokens may be in a span."""
        shared = seq.request.shared
        first = min(start for start, _ in seq.request.spans)
        if not MIN_PREFIX_TOKENS <= shared <= first:
            return
        hit = self._prefix_cache.find_prefix(None, seq.request.ids)
        if hit is None:
            return
        tokens, pieces = hit
        if tokens >= shared:
            self._kv_cache.write_row(0, *pieces)
            seq.read = shared

    def _add_to_sums(self, seq: StateSequence, states_KQD: torch.Tensor) -> None:
        if seq.sums is None:
            depth, _, width = states_KQD.shape
            shape = (depth, len(seq.request.spans), width)
            seq.sums = torch.zeros(shape, device=states_KQD.device)
        tokens = states_KQD.shape[1]
        for index, (start, end) in enumerate(seq.request.spans):
            low = max(start - seq.read, 0)
            high = min(end - seq.read, tokens)
            if low < high:
                seq.sums[:, index] += states_KQD[:, low:high].sum(1)

    def _pooled_states(self, seq: StateSequence) -> np.ndarray[Any, np.dtype[np.float32]]:
        assert seq.sums is not None
        lengths = [end - start for start, end in seq.request.spans]
        means = seq.sums / torch.tensor(lengths, device=seq.sums.device)[None, :, None]
        out: np.ndarray[Any, np.dtype[np.float32]] = means.cpu().numpy()
        return out

    def _adapt_chunk(self, tokens: int, seconds: float) -> None:
        """Choose the size of the next chunk by the speed of this one; it at most doubles."""
        fitting = int(tokens * CHUNK_SECONDS / max(seconds, 1e-6))
        self._chunk = max(MIN_CHUNK, min(fitting, 2 * max(tokens, MIN_CHUNK), MAX_CHUNK))

    def _layer_at(self, depth: float) -> int:
        layers = self._model.layout.layers
        return max(1, min(layers, round(depth * layers)))

    def _check(self, request: StateRequest) -> None:
        length = len(request.ids)
        context = self._model.context_length
        if not 0 < length <= context:
            raise EngineError(f"the text has {length} tokens; expected 1 to {context}")
        low = int(request.ids.min())
        high = int(request.ids.max())
        if low < 0 or high >= self._model.vocab_size:
            wrong = low if low < 0 else high
            last = self._model.vocab_size - 1
            raise EngineError(f"the text contains id {wrong}; the model has ids 0 to {last}")
        if not request.spans or not request.depths:
            raise EngineError("expected at least one span and one depth")
        for start, end in request.spans:
            if not 0 <= start < end <= length:
                raise EngineError(
                    f"span {start} to {end} is not in the {length} tokens of the text"
                )
