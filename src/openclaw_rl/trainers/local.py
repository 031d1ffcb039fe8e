"""The local trainer: one batch, one new version of the policy, on this machine's CPU or GPU.

Legend: B samples, R response tokens of one sample, K response tokens of a micro-batch.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openclaw_rl.config import ModelConfig, TrainConfig
from openclaw_rl.credit import Sample, StepResult, Term
from openclaw_rl.digest import digest_of
from openclaw_rl.trainers import checkpoint, scored, weights
from openclaw_rl.trainers.base import Method
from openclaw_rl.trainers.length import ReplyTokens
from openclaw_rl.trainers.logprob import Passes, check_head
from openclaw_rl.trainers.loss import Bounds, Loss, TermSlice, batch_loss
from openclaw_rl.trainers.measure import measured
from openclaw_rl.trainers.optimizer import Optimizer, Standing
from openclaw_rl.trainers.pack import Row
from openclaw_rl.trainers.schedule import rate
from openclaw_rl.trainers.scored import Scored

log = logging.getLogger(__name__)
MIN_SCALE = 2**-8  # of a step: what is still too far then is left to the gate


class LocalTrainer:
    """`protocols.Trainer` on torch, transformers and PEFT. Deterministic for a seed and a sequence of batches."""

    def __init__(self, path: str, method: Method, train: TrainConfig, model: ModelConfig | None = None) -> None:
        """`path`: folder of the base weights. Raises `ModelError` when they cannot be trained here."""
        torch.set_num_threads(train.threads)
        self._method, self._train = method, train
        self._weights = weights.make(path, train, model or ModelConfig())
        self.model, self.causal = self._weights.model, self._weights.causal
        check_head(self.causal)
        if train.checkpointing:
            _checkpoint(self.causal)
        self._passes = Passes(self.causal, micro_tokens=train.micro_tokens)
        self._bounds = Bounds(
            clip_low=train.clip_low,
            clip_high=train.clip_high,
            dual_clip=train.dual_clip,
            gap_low=train.gap_low,
            gap_high=train.gap_high,
            kind=train.loss,
        )
        self.load(folder=None, memory={})

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        """Stand on a policy. Raises `ModelError` or `ConfigError` when its folder does not fit."""
        self._optimizer = Optimizer(self._weights.parameters, self._train)
        self._memory = dict(memory)
        self._steps = self._seen = 0  # steps and turns of this line of versions
        if folder is None:
            self._weights.reset()
            return
        self._weights.read(Path(folder))
        state = checkpoint.read_state(Path(folder))
        self._steps, self._seen = int(state["steps"]), int(state.get("samples", 0))
        if not self._optimizer.read(Path(folder)):
            log.warning("%s holds no optimizer state any more: the optimizer starts afresh", folder)

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer`. A step that is not finite leaves the weights as they were; the gate rejects it."""
        started = time.perf_counter()
        batch, dropped = self._scored(samples)
        terms = self._method.terms(batch.evidence(), self._memory)
        members = [i for i in range(len(batch.samples)) if any(term.masks[i].any() for term in terms)]
        for i in set(range(len(batch.samples))) - set(members):
            dropped[batch.samples[i].turn] = "no score and no hint that the method can use"
        if not any(np.any(a[m] != 0) for term in terms for a, m in zip(term.advantages, term.masks, strict=True)):
            dropped |= {batch.samples[i].turn: "the batch had nothing to say: every advantage is 0" for i in members}
            return StepResult(folder=None, digest="", metrics={}, memory=self._memory, dropped=dropped)
        reply_tokens = ReplyTokens(self._memory, decay=self._train.length_decay)
        lengths, standing = batch.tokens(members), self._optimizer.standing()
        speed = rate(self._train, steps=self._steps, samples=self._seen)
        metrics = self._descend(batch, terms, members, reply_tokens.read(lengths), speed)
        metrics |= self._held_back(batch, members, standing)
        self._memory = self._method.remember([batch.samples[i] for i in members], reply_tokens.updated(lengths))
        self._steps, self._seen = self._steps + 1, self._seen + len(members)
        metrics |= {"step": float(self._steps), "learning_rate": speed}
        checkpoint.write_folder(Path(out), self._files())
        metrics["seconds"] = time.perf_counter() - started
        return StepResult(
            folder=out, digest=digest_of(out), metrics=metrics, memory=dict(self._memory), dropped=dropped
        )

    def logprobs(self, rows: Sequence[Row], *, base: bool = False) -> list[torch.Tensor]:
        """B times [R]: under the current policy, or under the frozen base."""
        return [logp for logp, _ in self._score(rows, base=base)]

    def _score(self, rows: Sequence[Row], *, base: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self.model.eval()
        if not base:
            return self._passes.score(rows)
        with self._weights.frozen():
            return self._passes.score(rows)

    def _scored(self, samples: Sequence[Sample]) -> tuple[Scored, dict[str, str]]:
        """The batch without the turns that are too stale, and why those are not in it."""
        rows = [scored.row_of(s) for s in samples]
        live = self._live(rows)
        student = self._score(rows) if live is None else [(a.detach().cpu(), b) for a, b in live]
        kept, dropped = scored.fresh_enough(samples, [o for o, _ in student], self._train.max_gap)
        rows, samples = [rows[i] for i in kept], [samples[i] for i in kept]
        hinted = scored.hinted(samples) if self._method.uses_hints else []
        frozen = self.logprobs([*rows, *(row for _, row in hinted)], base=True)  # one tree: hints are branches
        teachers: list[list[torch.Tensor]] = [[] for _ in samples]
        for (i, _), logp in zip(hinted, frozen[len(rows) :], strict=True):
            teachers[i].append(logp)
        return Scored(
            samples=samples,
            rows=rows,
            student=[student[i][0] for i in kept],
            entropy=[student[i][1] for i in kept],
            base=frozen[: len(rows)],
            teachers=teachers,
            live=None if live is None else [live[i][0] for i in kept],
        ), dict(dropped)

    def _live(self, rows: Sequence[Row]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """(logp [R] with its graph, entropy [R]) of each row, when the step's own pass can stand for "before the step".

        That is so with one step, one micro-batch and nothing random; a small batch is then one pass cheaper.
        """
        if self._train.epochs > 1 or self._train.lora.dropout > 0 or len(self._passes.groups(rows)) != 1:
            return None
        self._training()
        lengths = [len(row.response_ids) for row in rows]
        logp_K, entropy_K = self._passes.forward(rows)
        self.model.eval()
        return list(zip(torch.split(logp_K, lengths), torch.split(entropy_K.cpu(), lengths), strict=True))

    def _descend(
        self, batch: Scored, terms: Sequence[Term], members: Sequence[int], slow: float, speed: float
    ) -> dict[str, float]:
        """`train.epochs` optimizer steps on the whole batch; what is told is of the last one."""
        self._training()
        device = self.causal.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self._train.seed + self._steps)  # dropout: a function of seed and step, nothing to save
            for _ in range(self._train.epochs):
                metrics = self._step_once(batch, terms, members, slow, speed)
        self.model.eval()
        return metrics

    def _training(self) -> None:
        self.model.train(self._train.lora.dropout > 0)
        for layer in self.causal.modules():  # what is computed again in the backward pass
            if getattr(layer, "gradient_checkpointing", False):
                layer.training = True  # what is within stays as it is: the base's own dropout never acts

    def _step_once(
        self, batch: Scored, terms: Sequence[Term], members: Sequence[int], slow: float, speed: float
    ) -> dict[str, float]:
        """One optimizer step, in micro-batches whose gradients add up."""
        self._optimizer.zero()
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        rows = [batch.rows[i] for i in members]
        for group in [range(len(rows))] if batch.live else self._passes.groups(rows):
            loss = self._loss(batch, terms, [members[j] for j in group], len(members), slow)
            loss.total.backward()  # type: ignore[no-untyped-call]
            sums.update({"total": loss.total.item()} | dict(loss.parts))
            counts.update(loss.counts)
        norm = self._optimizer.step(speed, sound=bool(np.isfinite(sums["total"])))
        shares = {f"masked/{k}": v / max(1, sum(batch.tokens(members))) for k, v in counts.items() if k == "gap"}
        for term in terms:
            shares[f"clipped/{term.name}"] = counts[f"clipped/{term.name}"] / max(1, counts[f"tokens/{term.name}"])
        return {f"loss/{name}": value for name, value in sums.items()} | shares | {"gradient/norm": norm}

    def _loss(self, batch: Scored, terms: Sequence[Term], indices: Sequence[int], members: int, slow: float) -> Loss:
        """Of one micro-batch."""
        device = self.causal.device
        if batch.live is None:
            logp_K, _ = self._passes.forward([batch.rows[i] for i in indices])
        else:
            logp_K = torch.cat([batch.live[i] for i in indices])
        lengths = torch.tensor([len(batch.samples[i].response_ids) for i in indices])
        return batch_loss(
            logp_K=logp_K,
            mu_K=torch.cat([batch.mu(i) for i in indices]).to(device),
            base_K=torch.cat([batch.base[i] for i in indices]).to(device),
            terms=_slices(terms, indices, slow, device),
            kl_coef=self._train.kl_coef,
            kl_denominator=members * slow,
            bounds=self._bounds,
            old_K=torch.cat([batch.student[i] for i in indices]).to(device) if self._train.epochs > 1 else None,
            rows_K=torch.arange(len(indices)).repeat_interleave(lengths).to(device),
        )

    def _held_back(self, batch: Scored, members: Sequence[int], standing: Standing) -> dict[str, float]:
        """Keep the step within its trust region: while it moved the policy too far, halve it (arXiv:1502.05477).

        The optimizer knows gradients, not distances: among four turns of one person a single one can move shared
        weights so far that replies fall apart. What is measured is the mean k2 of the step over the batch's own tokens.
        """
        scale, rows = 1.0, [batch.rows[i] for i in members]
        metrics = measured(batch, members, self.logprobs(rows))
        while not metrics["kl/step"] <= self._train.max_step_kl and scale > MIN_SCALE:
            scale /= 2
            self._optimizer.halve(standing)
            metrics = measured(batch, members, self.logprobs(rows))
        return metrics | {"step/scale": scale}

    def _files(self) -> dict[str, bytes]:
        state = {"steps": self._steps, "samples": self._seen, "settings": self._train.model_dump(mode="json")}
        return self._weights.files() | {
            checkpoint.OPTIMIZER_FILE: self._optimizer.to_bytes(),
            checkpoint.STATE_FILE: json.dumps(state, indent=2).encode(),
        }


def _checkpoint(causal: Any) -> None:
    """Have each layer computed again in the backward pass. transformers renamed the call within 5."""
    named = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(causal, name) for name in named if hasattr(causal, name))
    enable({"use_reentrant": False})


def _slices(terms: Sequence[Term], indices: Sequence[int], slow: float, device: torch.device) -> list[TermSlice]:
    """The terms on these samples. Denominator: samples in the term times the slow average of reply tokens."""
    return [
        TermSlice(
            name=term.name,
            weight=term.weight,
            advantages_K=torch.from_numpy(np.concatenate([term.advantages[i] for i in indices])).to(device),
            mask_K=torch.from_numpy(np.concatenate([term.masks[i] for i in indices])).to(device),
            denominator=term.samples * slow,
        )
        for term in terms
        if term.samples
    ]
