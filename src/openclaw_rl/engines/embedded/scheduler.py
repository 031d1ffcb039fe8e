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
from openclaw_rl.engines.embedded.grammar import Guide
from openclaw_rl.engines.embedded.kv_cache import Slots
from openclaw_rl.engines.embedded.model import BaseModel
from openclaw_rl.engines.embedded.multi_lora import Key, Route
from openclaw_rl.engines.embedded.oom import PAUSE, Lack, is_hopeless, told
from openclaw_rl.engines.embedded.prefix_cache import PrefixCache
from openclaw_rl.engines.embedded.sampler import Draw, Sampler
from openclaw_rl.engines.embedded.sequence import Job, Out, Scored, Stuck, Token
from openclaw_rl.errors import EngineError, is_lack_of_memory
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Ids, PolicyRef, Sampling


class Core:
    """Scheduler for one model. Call `generate`, `score` and `cancel` between steps, and `step` while `has_work`."""

    def __init__(self, model: BaseModel, config: EngineConfig) -> None:
        self.model = model
        self._config = config
        self._slots, self._staging = Slots(model.layout), Slots(model.layout)
        self._prefixes = PrefixCache(config.prefix_cache_tokens)
        self._waiting: deque[Job] = deque()
        self._staged: list[Job] = []
        self._rows: list[Job] = []
        self._loaded: dict[int, tuple[Key, Key | None]] = {0: ((0, ""), None)}
        self._running: Counter[Key] = Counter()
        self._sweep_needed = False
        self._plan: tuple[Sampler, Route | None] | None = None  # of the current rows; None: they changed
        self._lack: Lack | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._loaded))

    @property
    def running(self) -> int:
        return len(self._rows) + len(self._staged)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._staged or self._waiting)

    def _draining(self, named: frozenset[Key]) -> frozenset[Key]:
        return frozenset(self._running) - named

    def check_room(self, policies: Sequence[PolicyRef]) -> None:
        """Raise `EngineError` if these versions and those with running replies exceed `engine.versions`."""
        named = frozenset((p.version, p.digest) for p in policies)
        if len({p.version for p in policies}) != len(policies):
            raise EngineError(f"load received a version twice: {[p.version for p in policies]}")
        draining = self._draining(named)
        if len(named | draining) > self._config.versions:
            still = f" and {sorted(v for v, _ in draining)} still answering" if draining else ""
            raise EngineError(
                f"{sorted(p.version for p in policies)} requested{still}; engine.versions is {self._config.versions}. "
                "Retry after a reply has ended, or raise engine.versions"
            )

    def missing(self, policies: Sequence[PolicyRef]) -> list[PolicyRef]:
        """Return the policies whose adapter files must be read before `load_versions`."""
        have = self.model.adapters.keys
        return [p for p in policies if p.path is not None and (p.version, p.digest) not in have]

    def change(self, policies: Sequence[PolicyRef], files: Mapping[Key, AdapterFile]) -> Generator[None]:
        """Load exactly these versions, in small steps. They take effect after the last; a failure changes nothing."""
        self.check_room(policies)
        yield from self.model.adapters.change(files, self.model.adapters.keys)
        self.check_room(policies)  # again: replies may have started between the steps
        self._plan = None
        held = {p.version: (p.version, p.digest) for p in policies}
        based = {p.version for p in policies if p.path is None}
        self._loaded = {v: (key, None if v in based else key) for v, key in held.items()}

    @property
    def _needed(self) -> frozenset[Key]:
        return frozenset(key for key, _ in self._loaded.values()) | frozenset(self._running)

    @property
    def untidy(self) -> bool:
        """Whether an adapter is in memory that no loaded version and no running sequence uses."""
        return bool(self.model.adapters.keys - self._needed)

    def tidy(self) -> Generator[None]:
        """Unload unused adapters and their cached prefixes, in small steps."""
        gone = self.model.adapters.keys - self._needed
        yield from self.model.adapters.change({}, self.model.adapters.keys - gone)
        self._plan = None
        for key in gone:
            self._prefixes.forget(key)

    def generate(
        self,
        owner: Any,
        version: int,
        prompt_ids: Ids,
        sampling: Sampling,
        stop: Sequence[int],
        top: int = 0,
        guide: Guide | None = None,
    ) -> Job:
        """Queue a reply. Raise `EngineError` if the version is not loaded or the prompt exceeds the context."""
        held, key = self._look_up(version)
        context = self.model.context_length
        if len(prompt_ids) >= context:
            raise EngineError(f"the prompt has {len(prompt_ids)} tokens; the context is {context}, reply included")
        _check_ids(prompt_ids, self.model.vocab_size, "prompt")
        if not math.isfinite(sampling.temperature):
            raise EngineError(f"temperature is {sampling.temperature}, expected a finite number")
        limit = min(sampling.max_tokens if sampling.max_tokens > 0 else context, context - len(prompt_ids))
        draw = Draw.of(sampling, top, guide)
        job = Job(owner=owner, held=held, key=key, ids=prompt_ids, prompt=len(prompt_ids), draw=draw,
                  stop=frozenset(stop), limit=limit)  # fmt: skip
        return self._queue(job)

    def score(self, owner: Any, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Job:
        """Queue a scoring of `response_ids`. Raise `EngineError` like `generate`."""
        held, key = self._look_up(version)
        context, total = self.model.context_length, len(prompt_ids) + len(response_ids)
        if total > context:
            raise EngineError(f"prompt and response have {total} tokens; the context is {context}")
        if len(response_ids) == 0:
            raise EngineError("there are no response ids to score; expected at least one")
        _check_ids(prompt_ids, self.model.vocab_size, "prompt")
        _check_ids(response_ids, self.model.vocab_size, "response")
        ids = np.concatenate([prompt_ids, response_ids[:-1]])
        draw = Draw(Sampling(temperature=temperature))
        job = Job(owner=owner, held=held, key=key, ids=ids, prompt=len(prompt_ids), draw=draw, targets=response_ids)
        return self._queue(job)

    def _look_up(self, version: int) -> tuple[Key, Key | None]:
        if version not in self._loaded:
            raise EngineError(f"version {version} is not loaded; loaded versions: {list(self.versions)}")
        return self._loaded[version]

    def _queue(self, job: Job) -> Job:
        self._running[job.held] += 1
        self._waiting.append(job)
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a sequence; the next step frees its row."""
        job.cancelled = self._sweep_needed = True

    @property
    def pause(self) -> float:
        """Seconds to wait before the next step; above 0 only if a step ran out of memory and no row runs."""
        return PAUSE if self._lack is not None and not self._rows else 0.0

    @torch.inference_mode()
    def step(self) -> list[Out]:
        """Decode one token for every row, then prefill one chunk. After an out-of-memory error, do part of it."""
        out: list[Out] = []
        if self._sweep_needed:
            self._sweep()
        try:
            if self._rows:
                self._decode(out)
            self._let_go()
            if not self._staged and (self._lack is None or self._lack.may_prefill(len(self._rows))):
                self._stage()
            if self._staged:
                self._prefill(out)
                self._lack = None
        except RuntimeError as error:
            if not is_lack_of_memory(error):
                raise
            self._make_room(out)
        self._let_go()
        return out

    def _let_go(self) -> None:
        """Free empty caches. On a CPU only after an out-of-memory error, because allocating new pages is slow."""
        if self._lack is None and self.model.device.type == "cpu":
            return
        if not self._rows:
            self._slots.shrink()
        if not self._staged:
            self._staging.shrink()

    def _make_room(self, out: list[Out]) -> None:
        """Handle a step that ran out of memory; see `oom`."""
        staged, self._staged = self._staged, []
        again = self._rows if self._lack is not None and not staged else []
        if again:
            self._rows, self._plan = [], None
        for job in (*staged, *again):
            job.begin_again()
        self._waiting.extendleft(reversed(again))
        self._waiting.extend(staged)
        self._prefixes.clear()
        self._lack = Lack.now(len(self._rows))
        tried = (*staged, *again)
        if len(tried) == 1 and not self._rows and is_hopeless(tried[0]):
            self._waiting.remove(tried[0])
            out.append(Stuck(tried[0], told(tried[0].cached + 1, self.model.device), grammar=False))
            self._ended(tried[0])

    def _sweep(self) -> None:
        self._sweep_needed = False
        for job in [*self._waiting, *self._staged]:
            if job.cancelled:
                self._ended(job)
        self._waiting = deque(j for j in self._waiting if not j.cancelled)
        self._staged = [j for j in self._staged if not j.cancelled]  # one long prompt: a group takes a single step
        for row in reversed(range(len(self._rows))):
            if self._rows[row].cancelled:
                self._retire(row)

    def _decode(self, out: list[Out]) -> None:
        rows = self._rows
        if self._plan is None:
            self._plan = (
                Sampler([j.draw for j in rows], self.model.device),
                self.model.adapters.route([j.key for j in rows]),
            )
        sampler, self.model.adapters.switch.route = self._plan
        positions = [j.cached for j in rows]
        length = max(positions) + 1
        self._slots.reserve(len(rows), length)
        ids_2N = torch.tensor([[j.drawn[-1] for j in rows], positions]).to(self.model.device)
        ids_N1, positions_N1 = ids_2N[0][:, None], ids_2N[1][:, None]
        logits_N1V = self.model.forward(ids_N1, positions_N1, self._slots, writes_NQ=None, length=length, keep=1)
        self._deliver(rows, sampler, logits_N1V[:, -1], out)
        for row in reversed(range(len(rows))):
            if _finish(rows[row]) is not None:
                self._retire(row)

    def _deliver(self, jobs: Sequence[Job], sampler: Sampler, logits_NV: Tensor, out: list[Out]) -> None:
        tokens, logprobs, tops = sampler(logits_NV)
        for i, job in enumerate(jobs):
            job.drawn.append(tokens[i])
            if job.draw.guide is not None and job.draw.guide.trouble is not None:
                self.cancel(job)
                out.append(Stuck(job, job.draw.guide.trouble))
                continue
            out.append(Token(job, tokens[i], logprobs[i], tops[i] if tops and job.draw.top else None, _finish(job)))

    def _retire(self, row: int) -> None:
        """Free a row: add its states to the prefix cache and move the last row into its place."""
        job, last = self._rows[row], len(self._rows) - 1
        self._keep(job, self._slots.take(row, job.cached))
        if row != last:
            self._slots.put(row, self._slots.take(last, self._rows[last].cached))
            self._rows[row] = self._rows[last]
        self._rows.pop()
        self._plan = None
        self._ended(job)

    def _keep(self, job: Job, states: Tensor) -> None:
        if not self._prefixes.wants(job.cached):
            return
        try:
            self._prefixes.add(job.key, job.all_ids(), states)
        except RuntimeError as error:
            if not is_lack_of_memory(error):
                raise
            self._prefixes.clear()  # the sequence may be half added

    def _ended(self, job: Job) -> None:
        self._running[job.held] -= 1
        if not self._running[job.held]:
            del self._running[job.held]

    def _stage(self) -> None:
        """Choose what to prefill: one long prompt, one scoring, or several short prompts that fit one chunk."""
        room = self._config.max_batch - len(self._rows)
        group: list[tuple[Job, tuple[int, list[Tensor]] | None]] = []
        longest, chunk = 0, self._config.prefill_chunk
        for job in self._waiting:
            if job.targets is None and len(group) == room:
                continue  # a scoring needs no row
            if group and job.targets is not None:
                break
            hit = self._prefixes.find(job.key, job.ids[: job.prompt])
            left = len(job.ids) - (hit[0] if hit else 0)
            if group and max(longest, left) * (len(group) + 1) > chunk:
                break
            longest = max(longest, left)
            group.append((job, hit))
            if job.targets is not None or longest > chunk or self._lack is not None:
                break
        for job, _ in group:
            self._waiting.remove(job)
        self._staged = [job for job, _ in group]
        self._staging.reserve(len(group), max((len(j.ids) for j in self._staged), default=0))
        for row, (job, hit) in enumerate(group):
            if hit is not None:
                job.start = job.reused = hit[0]
                self._staging.fill(row, hit[1])

    def _prefill(self, out: list[Out]) -> None:
        jobs = self._staged
        ends = [min(len(j.ids), j.start + self._config.prefill_chunk) for j in jobs]
        width = max(e - j.start for j, e in zip(jobs, ends, strict=True))
        keep = max(1, ends[0] - max(jobs[0].prompt - 1, jobs[0].start)) if len(jobs) == 1 else 1
        ids_NQ, positions_NQ, writes_NQ = self._right_aligned(jobs, ends, width)
        self.model.adapters.switch.route = self.model.adapters.route([j.key for j in jobs])
        logits_NQV = self.model.forward(
            ids_NQ, positions_NQ, self._staging, writes_NQ=writes_NQ, length=max(ends), keep=keep
        )
        if jobs[0].targets is not None:
            self._score(jobs[0], ends[0], logits_NQV[0])
        for job, end in zip(jobs, ends, strict=True):
            job.start = end
        if jobs[0].start == len(jobs[0].ids):  # a group of several needs one pass only
            self._prefilled(jobs, logits_NQV[:, -1], out)

    def _right_aligned(self, jobs: Sequence[Job], ends: Sequence[int], width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, positions and cache slots [N, Q], padded on the left. Padding writes to the spare slot."""
        made = np.zeros((3, len(jobs), width), dtype=np.int64)
        made[2] = self._staging.capacity - 1
        for row, (job, end) in enumerate(zip(jobs, ends, strict=True)):
            at = width - (end - job.start)
            made[0, row, at:] = job.ids[job.start : end]
            made[1, row, at:] = made[2, row, at:] = np.arange(job.start, end)
        ids_NQ, positions_NQ, writes_NQ = torch.from_numpy(made).to(self.model.device)
        return ids_NQ, positions_NQ, writes_NQ

    def _score(self, job: Job, end: int, logits_QV: Tensor) -> None:
        """Append the log-probabilities of one chunk. The logits at position t predict token t + 1."""
        first = max(job.start, job.prompt - 1)
        if end <= first:
            return
        assert job.targets is not None
        temperature = job.draw.sampling.temperature
        logprobs_QV = (logits_QV / (temperature if temperature > 0 else 1.0)).log_softmax(-1)
        targets = job.targets[first - job.prompt + 1 : end - job.prompt + 1].astype(np.int64)
        chosen_Q1 = logprobs_QV.gather(1, torch.from_numpy(targets).to(self.model.device)[:, None])
        job.scores += chosen_Q1[:, 0].tolist()

    def _prefilled(self, jobs: Sequence[Job], logits_NV: Tensor, out: list[Out]) -> None:
        if jobs[0].targets is not None:
            self._staged = []
            out.append(Scored(jobs[0], np.asarray(jobs[0].scores, dtype=np.float32)))
            self._ended(jobs[0])
            return
        there = not self._rows and len(jobs) == 1
        if there:  # swap the caches: no copy
            self._slots, self._staging = self._staging, self._slots
        # Reserve first: an out-of-memory error after the sampling could not be undone.
        self._slots.reserve(len(self._rows) + len(jobs), max(len(j.ids) for j in jobs) + 1)
        self._deliver(jobs, Sampler([j.draw for j in jobs], self.model.device), logits_NV, out)
        self._staged = []
        for row, job in enumerate(jobs):
            job.lacking = None
            states = (self._slots if there else self._staging).take(row, job.cached)
            if _finish(job) is not None:
                self._keep(job, states)
                self._ended(job)
                continue
            if not there:
                self._slots.put(len(self._rows), states)
            self._rows.append(job)
            self._plan = None


def _finish(job: Job) -> str | None:
    if job.drawn[-1] in job.stop:
        return "stop"
    return "length" if len(job.drawn) >= job.limit else None


def _check_ids(ids: Ids, vocab: int, what: str) -> None:
    if len(ids) == 0:
        raise EngineError(f"the {what} is empty; expected at least one token id")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise EngineError(f"the {what} contains id {low if low < 0 else high}; the model has ids 0 to {vocab - 1}")
