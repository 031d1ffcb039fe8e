"""Continuous batching for the embedded engine: sequences join and leave the batch between decode steps.

Shape legend: N rows, Q query tokens, V vocabulary. A sequence waits, is prefilled in the staging cache (a long prompt
in chunks, several short ones together), then decodes in a row of the main cache until it ends. No sockets, no threads.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.base import (
    VersionKey,
    check_capacity,
    check_scored_lengths,
    max_reply_tokens,
)
from openclaw_rl.engines.embedded.grammar import GrammarState
from openclaw_rl.engines.embedded.kv_cache import KVCache
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.multi_lora import LoraRouting
from openclaw_rl.engines.embedded.oom import RETRY_INTERVAL, OomState, has_timed_out, oom_reason
from openclaw_rl.engines.embedded.prefix_cache import PrefixCache, PrefixHit
from openclaw_rl.engines.embedded.sampler import Sampler, SamplingState
from openclaw_rl.engines.embedded.sequence import (
    EngineSequence,
    NewToken,
    SequenceFailed,
    SequenceScored,
    StepEvent,
)
from openclaw_rl.errors import EngineError, is_out_of_memory
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Ids, PolicyRef, Sampling


class EmbeddedEngine:
    """Scheduler for one model. Call `generate`, `score` and `cancel` between steps, and `step` while `has_work`."""

    def __init__(self, model: EmbeddedModel, config: EngineConfig) -> None:
        self.model = model
        self._config = config
        self._kv_cache = KVCache(model.layout)
        self._staging_cache = KVCache(model.layout)
        self._prefix_cache = PrefixCache(config.prefix_cache_tokens)
        self._waiting: deque[EngineSequence] = deque()
        self._staged: list[EngineSequence] = []
        self._rows: list[EngineSequence] = []
        self._loaded: dict[int, tuple[VersionKey, VersionKey | None]] = {0: ((0, ""), None)}
        self._running_counts: Counter[VersionKey] = Counter()
        self._has_cancelled = False
        # Of the current rows; None: they changed.
        self._batch_plan: tuple[Sampler, LoraRouting | None] | None = None
        self._oom_state: OomState | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._loaded))

    @property
    def running_count(self) -> int:
        return len(self._rows) + len(self._staged)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._rows or self._staged or self._waiting)

    @property
    def serves_people(self) -> bool:
        """Whether a person waits for one of the sequences."""
        return any(
            not seq.background
            for group in (self._rows, self._staged, self._waiting)
            for seq in group
        )

    @property
    def _versions_in_use(self) -> frozenset[VersionKey]:
        return frozenset(self._running_counts)

    def check_capacity(self, policies: Sequence[PolicyRef]) -> None:
        """Raise `EngineError` if these versions and those with running replies exceed `engine.max_loaded_versions`."""
        check_capacity(policies, self._versions_in_use, self._config.max_loaded_versions)

    def unread_policies(self, policies: Sequence[PolicyRef]) -> list[PolicyRef]:
        """Return the policies whose adapter files must be read before `load_versions`."""
        have = self.model.adapters.loaded_keys
        return [p for p in policies if p.path is not None and (p.version, p.digest) not in have]

    def load_versions(
        self, policies: Sequence[PolicyRef], files: Mapping[VersionKey, AdapterFile]
    ) -> Generator[None]:
        """Load exactly these versions, in small steps. They take effect after the last; a failure changes nothing."""
        self.check_capacity(policies)
        yield from self.model.adapters.replace_adapters(files, self.model.adapters.loaded_keys)
        # Again: replies may have started between the steps.
        self.check_capacity(policies)
        self._batch_plan = None
        loaded = {}
        for policy in policies:
            key = (policy.version, policy.digest)
            # The base has no adapter.
            loaded[policy.version] = (key, None if policy.path is None else key)
        self._loaded = loaded

    @property
    def _needed_adapters(self) -> frozenset[VersionKey]:
        return frozenset(key for key, _ in self._loaded.values()) | frozenset(self._running_counts)

    @property
    def has_unused(self) -> bool:
        """Whether an adapter is in memory that no loaded version and no running sequence uses."""
        return bool(self.model.adapters.loaded_keys - self._needed_adapters)

    def unload_unused(self) -> Generator[None]:
        """Unload unused adapters and their cached prefixes, in small steps."""
        unused = self.model.adapters.loaded_keys - self._needed_adapters
        yield from self.model.adapters.replace_adapters(
            {}, self.model.adapters.loaded_keys - unused
        )
        self._batch_plan = None
        for key in unused:
            self._prefix_cache.remove_policy(key)

    def generate(
        self,
        owner: Any,
        version: int,
        prompt_ids: Ids,
        sampling: Sampling,
        stop: Sequence[int],
        top: int = 0,
        grammar_state: GrammarState | None = None,
    ) -> EngineSequence:
        """Queue a reply. Raise `EngineError` if the version is not loaded or the prompt exceeds the context."""
        key, adapter = self._keys_of_version(version)
        limit = max_reply_tokens(len(prompt_ids), sampling.max_tokens, self.model.context_length)
        _check_ids(prompt_ids, self.model.vocab_size, "prompt")
        if not math.isfinite(sampling.temperature):
            raise EngineError(f"temperature is {sampling.temperature}, expected a finite number")
        state = SamplingState.from_sampling(sampling, top, grammar_state, stop)
        seq = EngineSequence(
            owner, key, adapter, prompt_ids, len(prompt_ids), state, frozenset(stop), limit
        )
        return self._add_waiting(seq)

    def score(
        self, owner: Any, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> EngineSequence:
        """Queue a scoring of `response_ids`. Raise `EngineError` like `generate`."""
        key, adapter = self._keys_of_version(version)
        check_scored_lengths(len(prompt_ids), len(response_ids), self.model.context_length)
        _check_ids(prompt_ids, self.model.vocab_size, "prompt")
        _check_ids(response_ids, self.model.vocab_size, "response")
        ids = np.concatenate([prompt_ids, response_ids[:-1]])
        state = SamplingState(Sampling(temperature=temperature))
        seq = EngineSequence(owner, key, adapter, ids, len(prompt_ids), state, targets=response_ids)
        return self._add_waiting(seq)

    def _keys_of_version(self, version: int) -> tuple[VersionKey, VersionKey | None]:
        if version not in self._loaded:
            raise EngineError(
                f"version {version} is not loaded; loaded versions: {list(self.versions)}"
            )
        return self._loaded[version]

    def _add_waiting(self, seq: EngineSequence) -> EngineSequence:
        self._running_counts[seq.version] += 1
        self._waiting.append(seq)
        return seq

    def cancel(self, seq: EngineSequence) -> None:
        """Cancel a sequence; the next step frees its row."""
        seq.cancelled = self._has_cancelled = True

    @property
    def retry_delay(self) -> float:
        """Seconds to wait before the next step; above 0 only if a step ran out of memory and no row runs."""
        return RETRY_INTERVAL if self._oom_state is not None and not self._rows else 0.0

    @torch.inference_mode()
    def step(self) -> list[StepEvent]:
        """Decode one token for every row, then prefill one chunk. If memory ran out, some sequences wait."""
        out: list[StepEvent] = []
        if self._has_cancelled:
            self._remove_cancelled()
        try:
            if self._rows:
                self._decode_step(out)
            self._free_empty_caches()
            if not self._staged and self._may_prefill():
                self._stage_prefill()
            if self._staged:
                self._prefill_chunk(out)
                self._oom_state = None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._handle_oom(out)
        self._free_empty_caches()
        return out

    def _free_empty_caches(self) -> None:
        """Free empty caches. On a CPU only after an out-of-memory error, because allocating new pages is slow."""
        if self._oom_state is None and self.model.device.type == "cpu":
            return
        if not self._rows:
            self._kv_cache.free_memory()
        if not self._staged:
            self._staging_cache.free_memory()

    def _may_prefill(self) -> bool:
        if self._oom_state is None:
            return True
        return self._oom_state.may_prefill(len(self._rows))

    def _handle_oom(self, out: list[StepEvent]) -> None:
        """Handle a step that ran out of memory; see `oom`."""
        staged = self._staged
        self._staged = []
        again = self._rows if self._oom_state is not None and not staged else []
        if again:
            self._rows = []
            self._batch_plan = None
        for seq in (*staged, *again):
            seq.restart_prefill()
        self._waiting.extendleft(reversed(again))
        self._waiting.extend(staged)
        self._prefix_cache.clear()
        self._oom_state = OomState.at_failure(len(self._rows))
        tried = (*staged, *again)
        if len(tried) == 1 and not self._rows and has_timed_out(tried[0]):
            seq = tried[0]
            self._waiting.remove(seq)
            reason = oom_reason(seq.num_cached + 1, self.model.device)
            out.append(SequenceFailed(seq, reason, grammar=False))
            self._release_version(seq)

    def _remove_cancelled(self) -> None:
        self._has_cancelled = False
        # Only a single long prompt is staged between steps.
        for seq in [*self._waiting, *self._staged]:
            if seq.cancelled:
                self._release_version(seq)
        self._waiting = deque(seq for seq in self._waiting if not seq.cancelled)
        self._staged = [seq for seq in self._staged if not seq.cancelled]
        for row in reversed(range(len(self._rows))):
            if self._rows[row].cancelled:
                self._free_row(row)

    def _decode_step(self, out: list[StepEvent]) -> None:
        rows = self._rows
        if self._batch_plan is None:
            sampler = Sampler([seq.state for seq in rows], self.model.device)
            route = self.model.adapters.route_batch([seq.adapter for seq in rows])
            self._batch_plan = (sampler, route)
        sampler, route = self._batch_plan
        self.model.adapters.route = route
        last_ids = [seq.sampled_ids[-1] for seq in rows]
        positions = [seq.num_cached for seq in rows]
        length = max(positions) + 1
        self._kv_cache.reserve(len(rows), length)
        ids_2N = torch.tensor([last_ids, positions]).to(self.model.device)
        ids_N1 = ids_2N[0][:, None]
        positions_N1 = ids_2N[1][:, None]
        logits_N1V = self.model.forward(
            ids_N1, positions_N1, self._kv_cache, writes_NQ=None, length=length, keep=1
        )
        self._sample_tokens(rows, sampler, logits_N1V[:, -1], out)
        for row in reversed(range(len(rows))):
            if _finish_reason(rows[row]) is not None:
                self._free_row(row)

    def _sample_tokens(
        self,
        seqs: Sequence[EngineSequence],
        sampler: Sampler,
        logits_NV: Tensor,
        out: list[StepEvent],
    ) -> None:
        tokens, logprobs, tops = sampler(logits_NV)
        for i, seq in enumerate(seqs):
            seq.sampled_ids.append(tokens[i])
            if seq.state.grammar_state is not None and seq.state.grammar_state.failure is not None:
                self.cancel(seq)
                out.append(SequenceFailed(seq, seq.state.grammar_state.failure))
                continue
            out.append(
                NewToken(
                    seq,
                    tokens[i],
                    logprobs[i],
                    tops[i] if tops and seq.state.top else None,
                    _finish_reason(seq),
                )
            )

    def _free_row(self, row: int) -> None:
        """Free a row: add its states to the prefix cache and move the last row into its place."""
        seq = self._rows[row]
        last = len(self._rows) - 1
        self._store_prefix(seq, self._kv_cache.row_states(row, seq.num_cached))
        if row != last:
            self._kv_cache.write_row(
                row, self._kv_cache.row_states(last, self._rows[last].num_cached)
            )
            self._rows[row] = self._rows[last]
        self._rows.pop()
        self._batch_plan = None
        self._release_version(seq)

    def _store_prefix(self, seq: EngineSequence, states: Tensor) -> None:
        if not self._prefix_cache.is_cacheable(seq.num_cached):
            return
        try:
            self._prefix_cache.add(seq.adapter, seq.cached_ids(), states)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # The sequence may be half added.
            self._prefix_cache.clear()

    def _release_version(self, seq: EngineSequence) -> None:
        self._running_counts[seq.version] -= 1
        if not self._running_counts[seq.version]:
            del self._running_counts[seq.version]

    def _stage_prefill(self) -> None:
        """Choose what to prefill: one long prompt, one scoring, or several short prompts that fit one chunk."""
        free_rows = self._config.max_batch - len(self._rows)
        group: list[tuple[EngineSequence, PrefixHit | None]] = []
        longest = 0
        chunk = self._config.prefill_chunk
        for seq in self._waiting:
            if seq.targets is None and len(group) == free_rows:
                # A scoring needs no row.
                continue
            if group and seq.targets is not None:
                break
            hit = self._prefix_cache.find_prefix(seq.adapter, seq.ids[: seq.prompt])
            left = len(seq.ids)
            if hit is not None:
                left -= hit[0]
            if group and max(longest, left) * (len(group) + 1) > chunk:
                break
            longest = max(longest, left)
            group.append((seq, hit))
            if seq.targets is not None or longest > chunk or self._oom_state is not None:
                break
        for seq, _ in group:
            self._waiting.remove(seq)
        self._stage_group(group)

    def _stage_group(self, group: Sequence[tuple[EngineSequence, PrefixHit | None]]) -> None:
        """Stage sequences, and copy the states of their cached prefixes."""
        self._staged = [seq for seq, _ in group]
        width = max((len(seq.ids) for seq in self._staged), default=0)
        self._staging_cache.reserve(len(group), width)
        for row, (seq, hit) in enumerate(group):
            if hit is None:
                continue
            tokens, pieces = hit
            seq.prefilled = tokens
            seq.reused_tokens = tokens
            self._staging_cache.write_row(row, *pieces)

    def _prefill_chunk(self, out: list[StepEvent]) -> None:
        seqs = self._staged
        chunk = self._config.prefill_chunk
        ends = [min(len(seq.ids), seq.prefilled + chunk) for seq in seqs]
        width = max(end - seq.prefilled for seq, end in zip(seqs, ends, strict=True))
        # Logits are needed of the last token, and of a scoring from the end of its prompt on.
        keep = 1
        if len(seqs) == 1:
            keep = max(1, ends[0] - max(seqs[0].prompt - 1, seqs[0].prefilled))
        ids_NQ, positions_NQ, writes_NQ = self._pad_left(seqs, ends, width)
        self.model.adapters.route = self.model.adapters.route_batch([seq.adapter for seq in seqs])
        logits_NQV = self.model.forward(
            ids_NQ,
            positions_NQ,
            self._staging_cache,
            writes_NQ=writes_NQ,
            length=max(ends),
            keep=keep,
        )
        if seqs[0].targets is not None:
            self._score_chunk(seqs[0], ends[0], logits_NQV[0])
        for seq, end in zip(seqs, ends, strict=True):
            seq.prefilled = end
        # Several prompts take one pass; only a single long one needs more.
        if seqs[0].prefilled == len(seqs[0].ids):
            self._finish_prefill(seqs, logits_NQV[:, -1], out)

    def _pad_left(
        self, seqs: Sequence[EngineSequence], ends: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, positions and cache slots [N, Q], padded on the left. Padding writes to the spare slot."""
        padded = np.zeros((3, len(seqs), width), dtype=np.int64)
        padded[2] = self._staging_cache.capacity - 1
        for row, (seq, end) in enumerate(zip(seqs, ends, strict=True)):
            at = width - (end - seq.prefilled)
            padded[0, row, at:] = seq.ids[seq.prefilled : end]
            padded[1, row, at:] = padded[2, row, at:] = np.arange(seq.prefilled, end)
        ids_NQ, positions_NQ, writes_NQ = torch.from_numpy(padded).to(self.model.device)
        return ids_NQ, positions_NQ, writes_NQ

    def _score_chunk(self, seq: EngineSequence, end: int, logits_QV: Tensor) -> None:
        """Append the log-probabilities of one chunk. The logits at position t predict token t + 1."""
        first = max(seq.prefilled, seq.prompt - 1)
        if end <= first:
            return
        assert seq.targets is not None
        temperature = seq.state.sampling.temperature
        if temperature <= 0:
            temperature = 1.0
        logprobs_QV = (logits_QV / temperature).log_softmax(-1)
        targets = seq.targets[first - seq.prompt + 1 : end - seq.prompt + 1].astype(np.int64)
        chosen_Q1 = logprobs_QV.gather(1, torch.from_numpy(targets).to(self.model.device)[:, None])
        seq.scores += chosen_Q1[:, 0].tolist()

    def _finish_prefill(
        self, seqs: Sequence[EngineSequence], logits_NV: Tensor, out: list[StepEvent]
    ) -> None:
        if seqs[0].targets is not None:
            self._staged = []
            out.append(SequenceScored(seqs[0], np.asarray(seqs[0].scores, dtype=np.float32)))
            self._release_version(seqs[0])
            return
        there = not self._rows and len(seqs) == 1
        # Swap the caches: no copy.
        if there:
            staged = self._staging_cache
            self._staging_cache = self._kv_cache
            self._kv_cache = staged
        # Reserve first: an out-of-memory error after the sampling could not be undone.
        length = max(len(seq.ids) for seq in seqs) + 1
        self._kv_cache.reserve(len(self._rows) + len(seqs), length)
        sampler = Sampler([seq.state for seq in seqs], self.model.device)
        self._sample_tokens(seqs, sampler, logits_NV, out)
        self._staged = []
        cache = self._kv_cache if there else self._staging_cache
        for row, seq in enumerate(seqs):
            seq.oom_since = None
            states = cache.row_states(row, seq.num_cached)
            if _finish_reason(seq) is not None:
                self._store_prefix(seq, states)
                self._release_version(seq)
                continue
            if not there:
                self._kv_cache.write_row(len(self._rows), states)
            self._rows.append(seq)
            self._batch_plan = None


def _finish_reason(seq: EngineSequence) -> str | None:
    if seq.sampled_ids[-1] in seq.stop:
        return "stop"
    return "length" if len(seq.sampled_ids) >= seq.limit else None


def _check_ids(ids: Ids, vocab: int, what: str) -> None:
    low = int(ids.min())
    high = int(ids.max())
    if low < 0 or high >= vocab:
        raise EngineError(
            f"the {what} contains id {low if low < 0 else high}; the model has ids 0 to {vocab - 1}"
        )
