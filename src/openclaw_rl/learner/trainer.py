"""Local trainer: turns one batch into one new policy version, on this machine's CPU or GPU.

Shapes: B samples, R response tokens of one sample, K response tokens of a micro-batch, N vocabulary tokens each.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import CheckpointError

from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.common.policy_digest import EMA_TEACHER_FILE, OPTIMIZER_FILE, hash_folder
from openclaw_rl.common.progress import (
    Activity,
    WorkKind,
    library_call,
    record_progress,
    working_on,
)
from openclaw_rl.learner.distributed.world import World
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.loss import distillation, plugin_loss
from openclaw_rl.learner.loss.policy_loss import LossResult, make_loss_config, micro_batch_loss
from openclaw_rl.learner.loss.scored_batch import ScoredBatch, check_token_ids, plain_sequence
from openclaw_rl.learner.model import oom as memory
from openclaw_rl.learner.model import state_files, weights
from openclaw_rl.learner.model.ema_teacher import EmaTeacher
from openclaw_rl.learner.optim.optimizer import Optimizer, WeightSnapshot
from openclaw_rl.learner.resident_states import ResidentState, ResidentStates, copy_tensors
from openclaw_rl.learner.scoring import PolicyScorer
from openclaw_rl.learner.step_frame import NO_ADVANTAGE, CreditedBatch, StepFrame
from openclaw_rl.learner.step_metrics import (
    EpochResult,
    epoch_metrics,
    no_step_reason,
    policy_metrics,
)
from openclaw_rl.learner.step_size import MIN_STEP_SCALE, StepKind, next_rate_scale
from openclaw_rl.methods.types import CreditMethod, Sample, StepResult
from openclaw_rl.settings.load import ModelConfig, TrainConfig
from openclaw_rl.types import Logprobs

log = logging.getLogger(__name__)


class _LossPart(NamedTuple):
    """Loss parts and token counts of one micro-batch, by name."""

    values: dict[str, float]
    counts: dict[str, int]


class _StepInputs(NamedTuple):
    """Inputs of the optimizer steps on one batch."""

    batch: CreditedBatch
    average_length: float  # tokens per reply
    rate: float  # learning rate


class LocalTrainer:
    """`protocols.Trainer` on torch, transformers and PEFT. Deterministic for a seed and a sequence of batches."""

    computes_here = True

    def __init__(
        self,
        path: str,
        method: CreditMethod,
        train: TrainConfig,
        model: ModelConfig | None = None,
        world: World | None = None,
    ) -> None:
        """`path`: folder of the base weights; `world`: the ranks of a distributed trainer, including this one.

        Raises `ModelError` if the model cannot be trained here.
        """
        torch.set_num_threads(train.threads)
        self._frame = StepFrame(method, train, top=train.distill.topk)
        self._train = train
        self._world = world or World()
        self._plugin_loss = plugin_loss.load_plugin_loss(train, method)
        self._weights = weights.make_weights(
            path, train, self._world.device_for(path, model or ModelConfig())
        )
        self.model = self._weights.model
        self.causal = self._weights.causal
        shared = self._world.shard(self.causal, self._weights.parameters.values())
        self._runner = ForwardRunner(
            self.causal,
            micro_tokens=train.batch.micro_tokens,
            parts=train.batch.gradient_accumulation_steps,
            world=self._world,
            compiled=train.compile,
            # Sharded ranks cannot retry after an out-of-memory error on one of them.
            checkpointing=True
            if shared and train.gradient_checkpointing is None
            else train.gradient_checkpointing,
        )
        self._loss_config = make_loss_config(train)
        self._optimizer = Optimizer(self._weights.parameters, train)
        self._ema_teacher = None
        if method.uses_hints and train.distill.teacher == "ema":
            rate = train.distill.ema_rate
            bound = train.distill.ema_max_kl
            self._ema_teacher = EmaTeacher(self._weights.parameters, rate=rate, bound=bound)
        # Sharded weights are read by all ranks.
        is_alone = self._world.size == 1 and train.finetune == "lora"
        self._residents = ResidentStates(train.checkpoint.resident_bytes if is_alone else 0)
        # Of the policy that is loaded; None: the base, or a step that did not end.
        self._folder: str | None = None
        # A step was begun.
        self._has_run = False
        self._scorer = PolicyScorer(self._weights, self._runner, train, self._ema_teacher)
        self.load(folder=None, method_state={})

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        """Load the policy in `folder`, or the base. Raises `ModelError` or `ConfigError` if it does not match.

        The state of the policy that was loaded before stays in memory (`train.checkpoint.resident_bytes`).
        """
        self._keep_state()
        self._frame.load(method_state)
        # See `next_rate_scale`.
        self._rate_scales = dict.fromkeys(StepKind, 1.0)
        if folder is None:
            self._weights.reset_to_base()
            self._optimizer.start()
            if self._ema_teacher is not None:
                self._ema_teacher.start()
            return
        resident = self._residents.take(folder)
        if resident is None:
            self._weights.read(Path(folder))
        else:
            self._restore_weights(resident)
        self._optimizer.start()
        self._load_teacher(Path(folder), resident)
        state = state_files.read_state(Path(folder))
        self._frame.load(
            method_state, steps=int(state["steps"]), turns_seen=int(state.get("samples", 0))
        )
        stored_scales = state.get("rate_scales", {})
        self._rate_scales = {kind: float(stored_scales.get(kind, 1.0)) for kind in StepKind}
        if not self._load_optimizer(Path(folder), resident):
            log.info(
                "%s no longer has an optimizer state: the optimizer starts from the beginning",
                folder,
            )
        self._folder = folder

    def has_resident(self, folder: str) -> bool:
        """Return whether `load` of this folder reads no weights and no state of the optimizer."""
        return folder in self._residents

    def _keep_state(self) -> None:
        """Keep the state of the policy that is loaded, before another one takes its place."""
        if self._folder is not None and self._residents.is_on:
            teacher = {} if self._ema_teacher is None else self._ema_teacher.copy_state()
            state = ResidentState(
                weights=copy_tensors(self._weights.parameters),
                optimizer=self._optimizer.copy_state(),
                teacher=teacher,
            )
            self._residents.add(self._folder, state)
        self._folder = None

    @torch.no_grad()
    def _restore_weights(self, resident: ResidentState) -> None:
        for name, parameter in self._weights.parameters.items():
            parameter.copy_(resident.weights[name])

    def _load_teacher(self, folder: Path, resident: ResidentState | None) -> None:
        if self._ema_teacher is None:
            return
        if resident is not None and (folder / EMA_TEACHER_FILE).exists():
            self._ema_teacher.restore(resident.teacher)
        else:
            self._ema_teacher.read(folder)

    def _load_optimizer(self, folder: Path, resident: ResidentState | None) -> bool:
        """Load the state of the optimizer. Return False if the folder no longer has one (old states are pruned)."""
        file = folder / OPTIMIZER_FILE
        if resident is None or not file.exists():
            return self._optimizer.read(folder)
        self._optimizer.restore(resident.optimizer, file)
        return True

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer`. A step with non-finite values does not change the weights; the gate rejects it.

        Raises `TooLarge` if the step does not fit into memory even with one row per pass.
        """
        taken = self._optimizer.steps_taken

        def has_stepped() -> bool:
            return self._optimizer.steps_taken != taken

        # The first passes compile, which takes minutes without a sign of progress.
        first_passes = (
            library_call() if self._runner.may_compile and not self._has_run else nullcontext()
        )
        self._has_run = True
        try:
            with first_passes:
                return memory.retry_on_oom(
                    lambda: self._take_step(samples, out), self._runner, has_stepped
                )
        except CheckpointError:
            # Recomputation compiled a layer a second time and saved other tensors.
            if has_stepped() or not self._runner.disable_compile():
                raise
            return memory.retry_on_oom(
                lambda: self._take_step(samples, out), self._runner, has_stepped
            )

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """See `protocols.Trainer`. Raises `TooLarge` if one row does not fit into memory, `ValueError` for unknown ids.

        With several ranks, each of them gets all log-probabilities.
        """
        check_token_ids(samples, self.causal.config.get_text_config().vocab_size)
        rows = [plain_sequence(sample) for sample in samples]
        scores = memory.retry_on_oom(lambda: self.logprobs(rows), self._runner, lambda: False)
        return [logp.float().cpu().numpy() for logp in scores]

    def _take_step(self, samples: Sequence[Sample], out: str) -> StepResult:
        started = time.perf_counter()
        check_token_ids(samples, self.causal.config.get_text_config().vocab_size)
        scored, stale = self._scorer.score_batch(samples, self._frame.method_for(samples))
        batch = self._frame.credit_batch(samples, scored, stale)
        if not batch.has_gradient:
            return self._frame.no_step(batch, NO_ADVANTAGE, {})
        self._folder = None
        snapshot = self._optimizer.snapshot()
        kind = _kind_of(samples)
        rate = self._frame.learning_rate() * self._rate_scales[kind]
        epochs = self._run_epochs(_StepInputs(batch, self._frame.average_length(batch), rate))
        no_step = no_step_reason(epochs)
        if no_step is not None:
            return self._frame.no_step(batch, no_step, {})
        moved = self._apply_trust_region(batch, snapshot, kind)
        self._rate_scales[kind] = next_rate_scale(
            self._rate_scales[kind],
            remaining=moved["step/scale"],
            moved=moved["kl/step"],
            bound=self._step_bound(kind),
        )
        metrics = epoch_metrics(epochs, batch.terms) | moved | {"learning_rate": rate}
        metrics |= self._scorer.update_teacher(scored.samples)
        metrics |= self._frame.finish_step(batch)
        if self._plugin_loss:
            metrics["plugin/wrong_signs"] = float(len(self._plugin_loss.sign_problems))
        digest = ""
        files = dict[str, str]()
        if self._world.rank == 0:
            write_folder(Path(out), self._state_file(), self._write_state)
            digest, files = hash_folder(out)
        self._folder = out
        metrics["seconds"] = time.perf_counter() - started
        return StepResult(
            folder=out,
            digest=digest,
            files=files,
            metrics=metrics,
            memory=dict(self._frame.method_state),
            dropped=batch.left_out,
            lesson_gaps=scored.gaps_by_turn(),
            credit=batch.credit(),
        )

    def logprobs(self, rows: Sequence[TokenSequence], *, base: bool = False) -> list[torch.Tensor]:
        """Return B tensors [R] of log-probabilities, under the current policy or the frozen base."""
        scores = self._scorer.base_logprobs(rows) if base else self._scorer.policy_logprobs(rows)
        return [row.logp for row in scores]

    def _run_epochs(self, inputs: _StepInputs) -> list[EpochResult]:
        """Run `train.batch.epochs` optimizer steps on the whole batch."""
        self._scorer.set_training_mode()
        device = self.causal.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # Dropout depends only on seed, step and rank, so no random state has to be saved.
            torch.manual_seed(self._train.seed + self._frame.steps + (self._world.rank << 32))
            epochs = [self._run_epoch(inputs) for _ in range(self._train.batch.epochs)]
        self.model.eval()
        return epochs

    def _run_epoch(self, inputs: _StepInputs) -> EpochResult:
        """Take one optimizer step with gradients summed over micro-batches; skip it if no token has a gradient."""
        self._optimizer.zero_grad()
        sums = Counter[str]()
        counts = Counter[str]()
        scored = inputs.batch.scored
        credited = inputs.batch.credited
        rows = [scored.rows[i] for i in credited]

        def backward_micro_batch(group: Sequence[int], weight: float) -> _LossPart:
            loss = self._micro_batch_loss(inputs, [credited[j] for j in group])
            record_progress()
            (weight * loss.total).backward()  # type: ignore[no-untyped-call]
            record_progress()
            return _LossPart({"total": loss.total.item()} | dict(loss.parts), dict(loss.counts))

        if scored.reused_forward:
            tokens = self._runner.pass_tokens(rows)
            with self._runner.speed.measure_pass(WorkKind.TRAIN, tokens, whole=False):
                parts = [backward_micro_batch(range(len(rows)), 1.0)]
        else:
            parts = self._runner.map_groups(rows, backward_micro_batch, _LossPart, WorkKind.TRAIN)
        for part in parts:
            sums.update(part.values)
            counts.update(part.counts)
        self._world.all_reduce_grads(self._optimizer.master_tensors)
        wanted = bool(np.isfinite(sums["total"])) and counts["live"] > 0
        values = sums if self._plugin_loss is None else self._plugin_loss.finite_metrics(sums)
        return EpochResult(
            values=values, counts=counts, norm=self._optimizer.step(inputs.rate, wanted=wanted)
        )

    def _micro_batch_loss(self, inputs: _StepInputs, indices: Sequence[int]) -> LossResult:
        """Return the loss of one micro-batch."""
        batch = inputs.batch.scored
        terms = inputs.batch.terms
        device = self.causal.device
        ids_KN = distillation.distilled_token_ids(terms, indices)
        if ids_KN is not None:
            ids_KN = ids_KN.to(device)
        logps_KN = self._token_logprobs(batch, indices, ids_KN)
        denominator = len(inputs.batch.credited) * inputs.average_length
        if self._plugin_loss is not None:
            with working_on(Activity(kind=WorkKind.LOSS)):
                return self._plugin_loss.micro_batch_loss(
                    batch, terms, indices, logps_KN[:, 0], denominator
                )
        lengths = torch.tensor([len(batch.samples[i].response_ids) for i in indices])
        from_teacher = torch.tensor([batch.samples[i].from_teacher for i in indices])
        old_K = None
        if self._train.batch.epochs > 1:
            old_K = torch.cat([batch.student[i] for i in indices]).to(device)
        sampled_K = None
        if from_teacher.any():
            sampled_K = ~from_teacher.repeat_interleave(lengths).to(device)
        return micro_batch_loss(
            logp_K=logps_KN[:, 0],
            mu_K=torch.cat([batch.sampled_logprobs(i) for i in indices]).to(device),
            base_K=torch.cat([batch.base[i] for i in indices]).to(device),
            terms=distillation.term_slices(terms, indices, logps_KN, inputs.average_length),
            kl_coef=self._train.loss.kl_coef,
            kl_denominator=denominator,
            config=self._loss_config,
            old_K=old_K,
            rows_K=torch.arange(len(indices)).repeat_interleave(lengths).to(device),
            sampled_K=sampled_K,
        )

    def _token_logprobs(
        self, batch: ScoredBatch, indices: Sequence[int], ids_KN: torch.Tensor | None
    ) -> torch.Tensor:
        """Return [K, 1 + N] log-probabilities of the response tokens and of `ids_KN`, with their autograd graph."""
        if batch.reused_forward is None:
            states = self._runner.hidden_states([batch.rows[i] for i in indices])
        elif ids_KN is None:
            return torch.cat([batch.reused_forward.logp[i] for i in indices]).unsqueeze(-1)
        else:
            states = batch.reused_forward.hidden.select_rows(indices)
        return states.token_logprobs(ids_KN=ids_KN).logps_KN

    def _apply_trust_region(
        self, batch: CreditedBatch, snapshot: WeightSnapshot, kind: StepKind
    ) -> dict[str, float]:
        """Keep the step within its trust region: halve it while it moved the policy too far (arXiv:1502.05477).

        The optimizer bounds gradients, not the change of the policy: in a batch of four turns, a single turn can move
        the shared weights so far that replies degenerate. The distance is the mean k2 over the tokens of the batch
        that a policy sampled.
        """
        scale = 1.0
        bound = self._step_bound(kind)
        metrics = self._policy_metrics(batch)
        while not metrics["kl/step"] <= bound and scale > MIN_STEP_SCALE:
            scale /= 2
            self._optimizer.step_back_half(snapshot)
            metrics = self._policy_metrics(batch)
        return metrics | {"step/scale": scale, "step/practice": float(kind is StepKind.PRACTICE)}

    def _step_bound(self, kind: StepKind) -> float:
        """Return how far a step may move the policy: k2, in nats per token."""
        safety = self._train.safety
        return safety.max_practice_kl if kind is StepKind.PRACTICE else safety.max_step_kl

    def _policy_metrics(self, batch: CreditedBatch) -> dict[str, float]:
        after = self._scorer.policy_logprobs([batch.scored.rows[i] for i in batch.sampled])
        return policy_metrics(
            batch.scored,
            batch.sampled,
            [scores.logp for scores in after],
            [scores.entropy_K for scores in after],
        )

    def _state_file(self) -> dict[str, bytes]:
        state = {
            "steps": self._frame.steps,
            "samples": self._frame.turns_seen,
            "rate_scales": self._rate_scales,
            "settings": self._train.model_dump(mode="json"),
        }
        state |= {"plugins": [self._plugin_loss.identity]} if self._plugin_loss else {}
        return {state_files.STATE_FILE: json.dumps(state, indent=2).encode()}

    def _write_state(self, folder: Path) -> None:
        self._weights.write(folder)
        self._optimizer.write(folder)
        if self._ema_teacher is not None:
            self._ema_teacher.write(folder)


def _kind_of(samples: Sequence[Sample]) -> StepKind:
    """Return whether a batch is one of practice."""
    is_practice = any(sample.guidance is not None for sample in samples)
    return StepKind.PRACTICE if is_practice else StepKind.TURNS
