"""The local trainer: one optimizer step a batch on a LoRA adapter, on this machine's CPU or GPU.

Legend: B samples, R response tokens of one sample, K response tokens of a micro-batch.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openclaw_rl.config import ModelConfig, TrainConfig
from openclaw_rl.digest import digest_of
from openclaw_rl.trainers import adapter, checkpoint
from openclaw_rl.trainers.base import Method
from openclaw_rl.trainers.length import ReplyTokens
from openclaw_rl.trainers.logprob import Passes, check_head
from openclaw_rl.trainers.loss import Bounds, Loss, TermSlice, batch_loss
from openclaw_rl.trainers.pack import Row
from openclaw_rl.types import Sample, StepResult, Term

log = logging.getLogger(__name__)
MIN_SCALE = 2**-8  # of a step: what is still too far then is left to the gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What is known of a batch before its step: B entries each."""

    samples: list[Sample]
    rows: list[Row]
    student: list[torch.Tensor]  # [R] o: the current policy, before the step
    entropy: list[torch.Tensor]  # [R] nats
    base: list[torch.Tensor]  # [R] adapter off, plain prompt
    teachers: list[list[torch.Tensor]]  # of each hint [R]: adapter off, hinted prompt

    def mask(self, i: int) -> torch.Tensor:
        """[R] bool."""
        return torch.from_numpy(self.samples[i].mask.astype(bool))

    def mu(self, i: int) -> torch.Tensor:
        """[R] sampled log-probabilities."""
        return torch.from_numpy(self.samples[i].logprobs.astype("float32"))


class LocalTrainer:
    """`protocols.Trainer` on torch, transformers and PEFT. Deterministic for a seed and a sequence of batches."""

    def __init__(self, path: str, method: Method, train: TrainConfig, model: ModelConfig | None = None) -> None:
        """`path`: folder of the base weights. Raises `ModelError` when they cannot be trained here."""
        torch.set_num_threads(train.threads)
        self._method, self._train = method, train
        base = adapter.load_base(path, model or ModelConfig())
        self.model = adapter.attach(base, path, train.lora, train.seed)
        self.causal = self.model.get_base_model()
        check_head(self.causal)
        if train.checkpointing:
            named = (
                "activation_checkpointing_enable",
                "gradient_checkpointing_enable",
            )  # transformers renamed it within 5
            enable = next(getattr(self.causal, name) for name in named if hasattr(self.causal, name))
            enable({"use_reentrant": False})
        self._passes = Passes(self.causal, micro_tokens=train.micro_tokens)
        self._parameters = adapter.trainable(self.model)
        self._fresh = adapter.tensors(self.model)
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
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=self._train.learning_rate,
            betas=self._train.adam_betas,
            weight_decay=self._train.weight_decay,
            foreach=False,
        )
        self._memory = dict(memory)
        self._steps = 0
        if folder is None:
            adapter.put(self.model, self._fresh)
            return
        adapter.read(self.model, Path(folder))
        self._steps = int(checkpoint.read_state(Path(folder))["steps"])
        if not checkpoint.read_optimizer(self._optimizer, self._parameters, Path(folder)):
            log.warning("%s holds no optimizer state any more: the optimizer starts afresh", folder)

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer`. A step that is not finite leaves the weights as they were; the gate rejects it."""
        started = time.perf_counter()
        batch, dropped = self._scored(samples)
        terms = self._terms(batch)
        members = [i for i in range(len(batch.samples)) if any(term.masks[i].any() for term in terms)]
        for i in set(range(len(batch.samples))) - set(members):
            dropped[batch.samples[i].turn] = "no score and no hint that the method can use"
        if not any(np.any(a[m] != 0) for term in terms for a, m in zip(term.advantages, term.masks, strict=True)):
            dropped |= {batch.samples[i].turn: "the batch had nothing to say: every advantage is 0" for i in members}
            return StepResult(folder=None, digest="", metrics={}, memory=self._memory, dropped=dropped)
        lengths = [int(batch.samples[i].mask.sum()) for i in members]
        reply_tokens = ReplyTokens(self._memory, decay=self._train.length_decay)
        standing = {name: p.detach().clone() for name, p in self._parameters.items()}
        metrics = self._descend(batch, terms, members, reply_tokens.read(lengths))
        metrics |= self._held_back(batch, members, standing)
        self._memory = self._method.remember([batch.samples[i] for i in members], reply_tokens.updated(lengths))
        self._steps += 1
        metrics |= {"step": float(self._steps), "learning_rate": self._train.learning_rate}
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
        with self.model.disable_adapter():
            return self._passes.score(rows)

    def _scored(self, samples: Sequence[Sample]) -> tuple[Scored, dict[str, str]]:
        """The batch without the turns that are too stale, and why those are not in it."""
        rows = [Row(prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=s.temperature) for s in samples]
        student = self._score(rows)
        kept, dropped = [], {}
        for i, sample in enumerate(samples):
            gap = _gap(sample, student[i][0].numpy())
            if gap <= self._train.max_gap:
                kept.append(i)
            else:
                dropped[sample.turn] = (
                    f"too stale: mean |log ratio| {gap:.2f} between version {sample.version} that wrote it and the "
                    f"policy being trained, above train.max_gap {self._train.max_gap:g}"
                )
        rows, samples = [rows[i] for i in kept], [samples[i] for i in kept]
        hinted = _hinted(samples) if self._method.uses_hints else []
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
        ), dropped

    def _terms(self, batch: Scored) -> Sequence[Term]:
        teachers = [[t.numpy() for t in of] for of in batch.teachers]
        return self._method.terms(batch.samples, [o.numpy() for o in batch.student], teachers, self._memory)

    def _descend(self, batch: Scored, terms: Sequence[Term], members: Sequence[int], slow: float) -> dict[str, float]:
        """`train.epochs` optimizer steps on the whole batch; what is told is of the last one."""
        self.model.train(self._train.lora.dropout > 0)
        for layer in self._layers():
            layer.training = True  # what is within stays as it is: the base's own dropout never acts
        device = self.causal.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self._train.seed + self._steps)  # dropout: a function of seed and step, nothing to save
            for _ in range(self._train.epochs):
                metrics = self._step_once(batch, terms, members, slow)
        self.model.eval()
        return metrics

    def _layers(self) -> list[torch.nn.Module]:
        """The layers that are computed again in the backward pass."""
        return [m for m in self.causal.modules() if getattr(m, "gradient_checkpointing", False)]

    def _step_once(self, batch: Scored, terms: Sequence[Term], members: Sequence[int], slow: float) -> dict[str, float]:
        """One optimizer step, in micro-batches whose gradients add up."""
        self._optimizer.zero_grad(set_to_none=True)
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for group in self._passes.groups([batch.rows[i] for i in members]):
            loss = self._loss(batch, terms, [members[j] for j in group], len(members), slow)
            loss.total.backward()  # type: ignore[no-untyped-call]
            sums.update({"total": loss.total.item()} | dict(loss.parts))
            counts.update(loss.counts)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._train.clip_grad, foreach=False).item()
        if np.isfinite(norm) and np.isfinite(sums["total"]):
            self._optimizer.step()
        shares = {f"masked/{k}": v / max(1, sum(_tokens(batch, members))) for k, v in counts.items() if k == "gap"}
        for term in terms:
            shares[f"clipped/{term.name}"] = counts[f"clipped/{term.name}"] / max(1, counts[f"tokens/{term.name}"])
        return {f"loss/{name}": value for name, value in sums.items()} | shares | {"gradient/norm": norm}

    def _loss(self, batch: Scored, terms: Sequence[Term], indices: Sequence[int], members: int, slow: float) -> Loss:
        """Of one micro-batch."""
        device = self.causal.device
        logp_K, _ = self._passes.forward([batch.rows[i] for i in indices])
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

    def _held_back(
        self, batch: Scored, members: Sequence[int], standing: Mapping[str, torch.Tensor]
    ) -> dict[str, float]:
        """Keep the step within its trust region: while it moved the policy too far, halve it (arXiv:1502.05477).

        The optimizer knows gradients, not distances: among four turns of one person a single one can move shared
        weights so far that replies fall apart. What is measured is the mean k2 of the step over the batch's own tokens.
        """
        scale = 1.0
        metrics = self._measured(batch, members)
        while not metrics["kl/step"] <= self._train.max_step_kl and scale > MIN_SCALE:
            scale /= 2
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(torch.lerp(standing[name], parameter, 0.5))
            metrics = self._measured(batch, members)
        return metrics | {"step/scale": scale}

    def _measured(self, batch: Scored, members: Sequence[int]) -> dict[str, float]:
        """What to know of a step: the gap before it, and the distances after it (per token, in nats)."""
        masks = torch.cat([batch.mask(i) for i in members])

        def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([parts[i] for i in members])[masks].double()

        before, base = flat(batch.student), flat(batch.base)
        mu = torch.cat([batch.mu(i) for i in members])[masks].double()
        after = torch.cat(self.logprobs([batch.rows[i] for i in members]))[masks].double()
        d, moved = after - base, after - before
        rewards = [r for i in members if (r := batch.samples[i].reward) is not None]
        scores = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))} if rewards else {}
        return (
            scores
            | _engine_gap(batch, members)
            | {
                "gap": (before - mu).abs().mean().item(),
                "kl": (d.square() / 2).mean().item(),
                "kl/k1": d.mean().item(),
                "kl/k3": (torch.expm1(-d) + d).mean().item(),
                "kl/step": (moved.square() / 2).mean().item(),
                "entropy": flat(batch.entropy).mean().item(),
                "tokens": float(masks.sum()),
                "turns": float(len(members)),
            }
        )

    def _files(self) -> dict[str, bytes]:
        state = {"steps": self._steps, "scheduler": "constant", "settings": self._train.model_dump(mode="json")}
        return adapter.to_files(self.model) | {
            checkpoint.OPTIMIZER_FILE: checkpoint.optimizer_bytes(self._optimizer, self._parameters),
            checkpoint.STATE_FILE: json.dumps(state, indent=2).encode(),
        }


def _hinted(samples: Sequence[Sample]) -> list[tuple[int, Row]]:
    """(which sample, the row of its teacher) for each hint."""
    return [
        (i, Row(prompt_ids=prompt, response_ids=s.response_ids, temperature=s.temperature))
        for i, s in enumerate(samples)
        for prompt in s.hinted_prompts
    ]


def _gap(sample: Sample, student: np.ndarray[Any, Any]) -> float:
    """Mean |log rho| over the tokens that may train. Raises `ValueError` when the policy itself is broken."""
    if not np.all(np.isfinite(student)):
        raise ValueError(
            f"turn {sample.turn}: expected finite log-probabilities, got {student}. The policy's weights are broken: "
            "roll back to an earlier version."
        )
    return float(np.abs(student - sample.logprobs)[sample.mask].mean()) if sample.mask.any() else 0.0


def _engine_gap(batch: Scored, members: Sequence[int]) -> dict[str, float]:
    """Mean |log pi - log mu| where both are of the same weights: what engine and trainer compute differently."""
    fresh = [i for i in members if batch.samples[i].on_policy]
    if not fresh:
        return {}
    gaps = torch.cat([(batch.student[i].double() - batch.mu(i).double()).abs()[batch.mask(i)] for i in fresh])
    return {"gap/engine": gaps.mean().item(), "gap/engine/tokens": float(len(gaps))}


def _tokens(batch: Scored, members: Sequence[int]) -> list[int]:
    return [int(batch.samples[i].mask.sum()) for i in members]


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
