"""Local trainer: turns one batch into one new policy version, on this machine's CPU or GPU.

Shapes: B samples, R response tokens of one sample, K response tokens of a micro-batch, N vocabulary tokens each.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import CheckpointError

from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.common.policy_digest import digest_of
from openclaw_rl.learner import oom as memory
from openclaw_rl.learner import state_files
from openclaw_rl.learner.distributed.world import Alone, World
from openclaw_rl.learner.forward.packing import Row
from openclaw_rl.learner.forward.runner import Passes
from openclaw_rl.learner.loss import distillation, plugin_loss
from openclaw_rl.learner.loss.length_ema import ReplyTokens
from openclaw_rl.learner.loss.policy_loss import Loss, TermSlice, batch_loss, bounds_of
from openclaw_rl.learner.model import weights
from openclaw_rl.learner.model.ema_teacher import Average
from openclaw_rl.learner.optim.optimizer import Optimizer, Standing, rate
from openclaw_rl.learner.scored_batch import Scored, check_ids
from openclaw_rl.learner.scoring import Sight
from openclaw_rl.learner.staleness import why_silent
from openclaw_rl.learner.step_metrics import Epoch, measured, told, why_idle
from openclaw_rl.methods.types import AnyTerm, Method, Sample, StepResult, Term
from openclaw_rl.settings.load import ModelConfig, TrainConfig

log = logging.getLogger(__name__)
MIN_SCALE = 2**-8  # smallest fraction of a step; if the policy still moved too far, the gate rejects it


class _Part(NamedTuple):
    """Loss parts and token counts of one micro-batch, by name."""

    values: dict[str, float]
    counts: dict[str, int]


class LocalTrainer:
    """`protocols.Trainer` on torch, transformers and PEFT. Deterministic for a seed and a sequence of batches."""

    def __init__(
        self,
        path: str,
        method: Method,
        train: TrainConfig,
        model: ModelConfig | None = None,
        world: World | None = None,
    ) -> None:
        """`path`: folder of the base weights; `world`: the ranks of a distributed trainer, including this one.

        Raises `ModelError` if the model cannot be trained here.
        """
        torch.set_num_threads(train.threads)
        self._method, self._train, self._world = method, train, world or Alone()
        self._custom = plugin_loss.make(train, method)
        self._weights = weights.make(path, train, self._world.placed(path, model or ModelConfig()))
        self.model, self.causal = self._weights.model, self._weights.causal
        shared = self._world.spread(self.causal, self._weights.parameters.values())
        self._passes = Passes(
            self.causal,
            micro_tokens=train.micro_tokens,
            parts=train.accumulation,
            world=self._world,
            compiled=train.compile,
            # Sharded ranks cannot retry after an out-of-memory error on one of them.
            checkpointing=True if shared and train.checkpointing is None else train.checkpointing,
        )
        self._bounds = bounds_of(train)
        self._optimizer = Optimizer(self._weights.parameters, train)
        self._average = _average(self._weights, train) if method.uses_hints else None
        self._sight = Sight(self._weights, self._passes, train, self._average)
        self.load(folder=None, memory={})

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        """Load the policy in `folder`, or the base. Raises `ModelError` or `ConfigError` if it does not match."""
        self._memory = dict(memory)
        self._steps = self._seen = 0  # steps and turns over all ancestors of this version
        if folder is None:
            self._weights.reset()
            self._optimizer.start()
            if self._average is not None:
                self._average.start()
            return
        self._weights.read(Path(folder))
        self._optimizer.start()
        if self._average is not None:
            self._average.read(Path(folder))
        state = state_files.read_state(Path(folder))
        self._steps, self._seen = int(state["steps"]), int(state.get("samples", 0))
        if not self._optimizer.read(Path(folder)):
            log.warning("%s no longer has an optimizer state: the optimizer starts from the beginning", folder)

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer`. A step with non-finite values does not change the weights; the gate rejects it.

        Raises `TooLarge` if the step does not fit into memory even with one row per pass.
        """
        taken = self._optimizer.steps

        def begun() -> bool:
            return self._optimizer.steps != taken

        try:
            return memory.fitted(lambda: self._step(samples, out), self._passes, begun)
        except CheckpointError:  # recomputation compiled a layer a second time and saved other tensors
            if begun() or not self._passes.interpret():
                raise
            return memory.fitted(lambda: self._step(samples, out), self._passes, begun)

    def _step(self, samples: Sequence[Sample], out: str) -> StepResult:
        started = time.perf_counter()
        check_ids(samples, self.causal.config.get_text_config().vocab_size)
        batch, dropped = self._sight.scored(samples, self._method)
        passed = {"dropped/stale": float(sum(s.turn in dropped for s in samples if not s.replay))}
        terms = self._method.terms(batch.evidence(), self._memory)
        members = [i for i in range(len(batch.samples)) if any(term.masks[i].any() for term in terms)]
        for i in set(range(len(batch.samples))) - set(members):
            dropped[batch.samples[i].turn] = why_silent(batch.samples[i])
        if not any(term.speaks for term in terms):
            return self._none(batch, members, "the batch gives no signal: every advantage is 0", passed, dropped)
        reply_tokens = ReplyTokens(self._memory, decay=self._train.length_decay)
        lengths, standing = batch.tokens(members), self._optimizer.standing()
        speed = rate(self._train, steps=self._steps, samples=self._seen)
        epochs = self._descend(batch, terms, members, reply_tokens.read(lengths), speed)
        if why := why_idle(epochs):
            return self._none(batch, members, why, passed, dropped)
        metrics = told(epochs, terms) | self._held_back(batch, members, standing)
        metrics |= self._sight.teacher_follows(batch.samples)
        first = [i for i in members if not batch.samples[i].replay]  # moving averages count each turn once
        updated = reply_tokens.updated(batch.tokens(first))
        self._memory = self._method.remember([batch.samples[i] for i in first], updated)
        self._steps, self._seen = self._steps + 1, self._seen + len(first)
        metrics |= {"step": float(self._steps), "learning_rate": speed} | passed
        metrics |= self._custom.metrics if self._custom else {}
        first_rank = self._world.rank == 0
        if first_rank:
            write_folder(Path(out), self._state(), self._fill)
        metrics["seconds"] = time.perf_counter() - started
        return StepResult(
            folder=out,
            digest=digest_of(out) if first_rank else "",
            metrics=metrics,
            memory=dict(self._memory),
            dropped=dropped,
        )

    def _none(
        self, batch: Scored, members: Sequence[int], why: str, metrics: dict[str, float], dropped: dict[str, str]
    ) -> StepResult:
        """Return the result of a batch without a step; weights, moments, method state and step count are unchanged."""
        every = dropped | {batch.samples[i].turn: why for i in members}
        return StepResult(folder=None, digest="", metrics=metrics, memory=self._memory, dropped=every)

    def logprobs(self, rows: Sequence[Row], *, base: bool = False) -> list[torch.Tensor]:
        """Return B tensors [R] of log-probabilities, under the current policy or the frozen base."""
        seen = self._sight.base(rows) if base else self._sight.policy(rows)
        return [picked.logp for picked in seen]

    def _descend(
        self, batch: Scored, terms: Sequence[AnyTerm], members: Sequence[int], slow: float, speed: float
    ) -> list[Epoch]:
        """Run `train.epochs` optimizer steps on the whole batch."""
        self._sight.training()
        device = self.causal.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # Dropout depends only on seed, step and rank, so no random state has to be saved.
            torch.manual_seed(self._train.seed + self._steps + (self._world.rank << 32))
            epochs = [self._step_once(batch, terms, members, slow, speed) for _ in range(self._train.epochs)]
        self.model.eval()
        return epochs

    def _step_once(
        self, batch: Scored, terms: Sequence[AnyTerm], members: Sequence[int], slow: float, speed: float
    ) -> Epoch:
        """Take one optimizer step with gradients summed over micro-batches; skip it if no token has a gradient."""
        self._optimizer.zero()
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        rows = [batch.rows[i] for i in members]

        def part(group: Sequence[int], weight: float) -> _Part:
            loss = self._loss(batch, terms, [members[j] for j in group], len(members), slow)
            (weight * loss.total).backward()  # type: ignore[no-untyped-call]
            return _Part({"total": loss.total.item()} | dict(loss.parts), dict(loss.counts))

        for values, took in [part(range(len(rows)), 1.0)] if batch.live else self._passes.over(rows, part, _Part):
            sums.update(values)
            counts.update(took)
        self._world.add_up(self._optimizer.tensors)
        wanted = bool(np.isfinite(sums["total"])) and counts["live"] > 0
        parts = sums if self._custom is None else self._custom.finite(sums)
        return Epoch(values=parts, counts=counts, norm=self._optimizer.step(speed, wanted=wanted))

    def _loss(self, batch: Scored, terms: Sequence[AnyTerm], indices: Sequence[int], members: int, slow: float) -> Loss:
        """Return the loss of one micro-batch."""
        device = self.causal.device
        asked_KN = distillation.asked(terms, indices)
        logps_KN = self._logps(batch, indices, None if asked_KN is None else asked_KN.to(device))
        if self._custom is not None:
            return self._custom.loss(batch, terms, indices, logps_KN[:, 0], members * slow)
        lengths = torch.tensor([len(batch.samples[i].response_ids) for i in indices])
        return batch_loss(
            logp_K=logps_KN[:, 0],
            mu_K=torch.cat([batch.mu(i) for i in indices]).to(device),
            base_K=torch.cat([batch.base[i] for i in indices]).to(device),
            terms=_slices(terms, indices, slow, logps_KN) + distillation.slices(terms, indices, logps_KN[:, 1:], slow),
            kl_coef=self._train.kl_coef,
            kl_denominator=members * slow,
            bounds=self._bounds,
            old_K=torch.cat([batch.student[i] for i in indices]).to(device) if self._train.epochs > 1 else None,
            rows_K=torch.arange(len(indices)).repeat_interleave(lengths).to(device),
        )

    def _logps(self, batch: Scored, indices: Sequence[int], asked_KN: torch.Tensor | None) -> torch.Tensor:
        """Return [K, 1 + N] log-probabilities of the response tokens and of `asked_KN`, with their autograd graph."""
        if batch.live is None:
            return self._passes.read([batch.rows[i] for i in indices]).pick(ids_KN=asked_KN).logps_KN
        if asked_KN is None:
            return torch.cat([batch.live.logp[i] for i in indices]).unsqueeze(-1)
        return batch.live.read.of(indices).pick(ids_KN=asked_KN).logps_KN

    def _held_back(self, batch: Scored, members: Sequence[int], standing: Standing) -> dict[str, float]:
        """Keep the step within its trust region: halve it while it moved the policy too far (arXiv:1502.05477).

        The optimizer bounds gradients, not the change of the policy: in a batch of four turns, a single turn can move
        the shared weights so far that replies degenerate. The distance is the mean k2 over the tokens of the batch.
        """
        scale, rows = 1.0, [batch.rows[i] for i in members]
        metrics = measured(batch, members, self.logprobs(rows))
        while not metrics["kl/step"] <= self._train.max_step_kl and scale > MIN_SCALE:
            scale /= 2
            self._optimizer.halve(standing)
            metrics = measured(batch, members, self.logprobs(rows))
        return metrics | {"step/scale": scale}

    def _state(self) -> dict[str, bytes]:
        state = {"steps": self._steps, "samples": self._seen, "settings": self._train.model_dump(mode="json")}
        state |= {"plugins": [self._custom.identity]} if self._custom else {}
        return {state_files.STATE_FILE: json.dumps(state, indent=2).encode()}

    def _fill(self, folder: Path) -> None:
        self._weights.write(folder)
        self._optimizer.write(folder)
        if self._average is not None:
            self._average.write(folder)


def _average(trained: weights.Weights, train: TrainConfig) -> Average | None:
    if train.reference == "base":
        return None
    return Average(trained.parameters, rate=train.average_rate, bound=train.average_bound)


def _slices(terms: Sequence[AnyTerm], indices: Sequence[int], slow: float, like: torch.Tensor) -> list[TermSlice]:
    """Return the policy-gradient terms on these samples, with the dtype and device of `like`.

    Denominator: samples in the term times the moving average of reply tokens.
    """
    return [
        TermSlice(
            name=term.name,
            weight=term.weight,
            advantages_K=torch.from_numpy(np.concatenate([term.advantages[i] for i in indices])).to(like),
            mask_K=torch.from_numpy(np.concatenate([term.masks[i] for i in indices])).to(like.device),
            denominator=term.samples * slow,
        )
        for term in terms
        if isinstance(term, Term) and term.samples
    ]
