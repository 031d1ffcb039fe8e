"""`protocols.Trainer` by the Tinker service; with the credit, masks and trust region of the local trainer.

A step starts from the checkpoint of the loaded version, never from what the service has in memory, and ends in new
checkpoints, whose names no other step has. A step whose answer is lost therefore leaves nothing that is used. Where a
local engine serves, the adapter is downloaded into the version's folder, which that engine loads as any other.
Shapes: R response tokens of a sample.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.common.policy_digest import (
    ADAPTER_CONFIG,
    TINKER_FILE,
    digest_of_folder,
    hash_folder,
)
from openclaw_rl.errors import EngineError, ModelError, TrainerAbsent
from openclaw_rl.learner.loss import scored_batch
from openclaw_rl.learner.loss.scored_batch import ScoredBatch
from openclaw_rl.learner.model import state_files
from openclaw_rl.learner.staleness import drop_stale
from openclaw_rl.learner.step_frame import NO_ADVANTAGE, CreditedBatch, StepFrame
from openclaw_rl.learner.step_metrics import (
    ZERO_GRADIENT,
    EpochResult,
    epoch_metrics,
    no_step_reason,
    policy_metrics,
)
from openclaw_rl.learner.tinker.base_check import MAX_BASE_GAP, base_gap, mismatch_message
from openclaw_rl.learner.tinker.datum_arrays import DatumArrays, make_datum
from openclaw_rl.learner.tinker.token_gradients import TokenGradients, compute_token_gradients
from openclaw_rl.learner.tinker.training_budget import TrainingBudget
from openclaw_rl.learner.tinker.training_session import (
    TrainingSession,
    forward_tokens,
    scoring_tokens,
)
from openclaw_rl.methods.types import CreditMethod, Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.tinker.adapter_download import LocalBase
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.tinker.version_file import TinkerVersion, encode_version, read_version
from openclaw_rl.types import Logprobs, PolicyRef

log = logging.getLogger(__name__)
# Smallest fraction of a step, as of the local trainer.
MIN_STEP_SCALE = 2**-8
# With a gradient of 0, which a step has that the service takes a second time.
STEP_ATTEMPTS = 3
# Of SkyRL's server, which ignores `train.optimizer.clip_grad`.
_UNCLIPPED_NORM = "skyrl.ai/grad_norm"
# Names in the metrics of a step at the service.
_GRADIENT_NORMS = ("grad_norm", _UNCLIPPED_NORM)


class _Taken(NamedTuple):
    """A step at the service. `norm`: of its gradient before clipping; None: not known."""

    norm: float | None
    is_clipped: bool


class TinkerTrainer:
    """Takes steps at the service. The samples must have been sampled at temperature 1, at which it computes."""

    computes_here = False

    def __init__(
        self,
        config: Config,
        method: CreditMethod,
        service: TinkerService | None = None,
        *,
        base: Path | None = None,
    ) -> None:
        """`base`: folder of the model that a local engine serves; None: adapters are not compared with its files.

        Raises `ModelError` if the token count in the home cannot be read.
        """
        torch.set_num_threads(config.train.threads)
        self._train = config.train
        self._method = method
        # The service returns no log-probabilities of other tokens.
        self._frame = StepFrame(method, config.train, top=0)
        self._service = service or TinkerService(config)
        self._usage = TrainingBudget(config.home_dir, config.tinker.budget_tokens)
        serves_here = engine_spec(config).loads_adapters
        self._local_base = LocalBase(name=config.model.path, folder=base) if serves_here else None
        self._session = TrainingSession(
            self._service, config.tinker, config.train, self._usage, self._local_base
        )
        # What was found when bases were compared, if they differ.
        self._other_base: TrainerAbsent | None = None
        self.load(folder=None, method_state={})

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        """See `protocols.Trainer`. Raises `ModelError` for a version of another trainer, base or rank."""
        self._frame.load(method_state)
        self._state: str | None = None
        if folder is None:
            return
        version = self._read_version(folder)
        if version.base != self._service.model or version.rank != self._train.lora.rank:
            raise ModelError(
                f"{folder}: trained on {version.base} with rank {version.rank}; the settings say {self._service.model} "
                f"(tinker.model) and {self._train.lora.rank} (train.lora.rank). Set them back"
            )
        if (self._local_base is not None) != (Path(folder) / ADAPTER_CONFIG).exists():
            raise ModelError(
                f"{folder}: the engine.backend of that version was {'tinker' if self._local_base else 'another one'}, "
                "which adapts other layers. Set it back, or roll back to the base (`openclaw-rl rollback 0`)"
            )
        state = state_files.read_state(Path(folder))
        self._state = version.state
        self._frame.load(method_state, steps=int(state["steps"]), turns_seen=int(state["samples"]))

    def _read_version(self, folder: str) -> TinkerVersion:
        number = int(Path(folder).name.partition("-")[0])
        try:
            return read_version(
                PolicyRef(version=number, path=folder, digest=digest_of_folder(folder))
            )
        except (EngineError, OSError) as error:
            raise ModelError(str(error)) from None

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """See `protocols.Trainer`."""
        rows = [scored_batch.plain_sequence(sample) for sample in samples]
        self._usage.begin_step(forward_tokens(rows))
        self._session.restore(self._state)
        return self._session.policy_logprobs(rows)

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer`. Raises `TrainerAbsent` if the service fails or the budget does not suffice."""
        if self._other_base is not None:
            raise self._other_base
        started = time.perf_counter()
        usable, unusable = _split_usable(samples)
        self._usage.begin_step(self._step_tokens(usable))
        if not usable:
            return self._frame.unchanged(unusable, {})
        self._session.restore(self._state)
        scored, stale = self._score_batch(usable)
        batch = self._frame.credit_batch(samples, scored, unusable | stale)
        if not batch.has_gradient:
            return self._frame.no_step(batch, NO_ADVANTAGE, self._usage.metrics)
        gradients = compute_token_gradients(
            scored, batch.terms, batch.credited, self._frame.average_length(batch), self._train
        )
        no_step = no_step_reason([_as_epoch(gradients, norm=1.0)])
        if no_step is not None:
            return self._frame.no_step(batch, no_step, self._usage.metrics)
        metrics = self._take_bounded_step(batch, gradients)
        if metrics is None:
            return self._frame.no_step(batch, ZERO_GRADIENT, self._usage.metrics)
        metrics |= self._frame.finish_step(batch)
        self._write_version(Path(out))
        digest, files = hash_folder(out)
        metrics |= self._usage.metrics | {"seconds": time.perf_counter() - started}
        return StepResult(
            folder=out,
            digest=digest,
            files=files,
            metrics=metrics,
            memory=dict(self._frame.method_state),
            dropped=batch.left_out,
            credit=batch.credit(),
        )

    def _step_tokens(self, samples: Sequence[Sample]) -> int:
        """Return the tokens that a step sends if no sample is left out: three passes of the model, and the base's."""
        rows = [scored_batch.plain_sequence(sample) for sample in samples]
        hinted = (
            [row for _, row in scored_batch.hinted_sequences(samples)]
            if self._method.uses_hints
            else []
        )
        return 3 * forward_tokens(rows) + scoring_tokens([*rows, *hinted])

    def _score_batch(self, samples: Sequence[Sample]) -> tuple[ScoredBatch, dict[str, Reason]]:
        """Score the policy, the base and the teacher, which is the base under the hint.

        Return the batch without stale turns, and the reason for each of those.
        """
        safety = self._train.safety
        session = self._session
        policy = session.policy_logprobs(
            [scored_batch.plain_sequence(sample) for sample in samples]
        )
        self._check_base(samples, policy)
        student = [_to_tensor(logp) for logp in policy]
        usable, stale = drop_stale(
            samples,
            student,
            max_gap=safety.max_turn_log_ratio,
            max_batch_gap=safety.batch_log_ratio_limit,
        )
        samples = [samples[i] for i in usable]
        student = [student[i] for i in usable]
        rows = [scored_batch.plain_sequence(sample) for sample in samples]
        hinted = scored_batch.hinted_sequences(samples) if self._method.uses_hints else []
        base_logprobs = [
            _to_tensor(logp) for logp in session.base_logprobs([*rows, *(row for _, row in hinted)])
        ]
        teachers: list[list[torch.Tensor]] = [[] for _ in samples]
        for (i, _), logp in zip(hinted, base_logprobs[len(rows) :], strict=True):
            teachers[i].append(logp)
        batch = ScoredBatch(
            samples=samples,
            rows=rows,
            student=student,
            student_at_teacher_temperature=student,
            entropy=[torch.zeros_like(logp) for logp in student],
            base=base_logprobs[: len(rows)],
            teachers=teachers,
            teacher_entropy=[[] for _ in samples],
            tops=[],
        )
        return batch, stale

    def _check_base(self, samples: Sequence[Sample], policy: Sequence[Logprobs]) -> None:
        """Compare the bases at each step that starts from the base, with what the local engine recorded.

        Raises `TrainerAbsent` if they differ, and so does each further step of this process.
        """
        if self._local_base is None or self._state is not None:
            return
        gap = base_gap(samples, policy)
        if gap is not None and gap > MAX_BASE_GAP:
            message = mismatch_message(gap, here=self._local_base.name, there=self._service.model)
            self._other_base = TrainerAbsent(message)
            raise self._other_base

    def _take_bounded_step(
        self, batch: CreditedBatch, gradients: TokenGradients
    ) -> dict[str, float] | None:
        """Take the step; while it moves the policy too far, take it again from the start at half the learning rate.

        The gradient is the same again and Adam's step is proportional to the rate, so this halves the step. Return the
        metrics; None if the gradient at the service is 0.
        """
        data = []
        for i, advantages in zip(batch.credited, gradients.advantages, strict=True):
            datum = self._make_datum(batch, i, advantages)
            if datum.advantages.any():
                data.append(datum)
        full_rate = self._frame.learning_rate()
        scale = 1.0
        norm, sent = self._take_clipped_step(data, full_rate)
        if norm == 0:
            return None
        while True:
            metrics = self._measure_policy(batch)
            if metrics["kl/step"] <= self._train.safety.max_step_kl or scale <= MIN_STEP_SCALE:
                break
            scale /= 2
            self._session.restore(self._state)
            if self._take_step_once(sent, full_rate * scale).norm == 0:
                return None
        metrics |= epoch_metrics([_as_epoch(gradients, norm=norm or 0.0)], batch.terms)
        # The service does not return what it would need.
        del metrics["entropy"]
        if norm is None:
            del metrics["gradient/norm"]
        return metrics | {"step/scale": scale, "learning_rate": full_rate}

    def _measure_policy(self, batch: CreditedBatch) -> dict[str, float]:
        """Return the metrics of the policy at the service, on the samples that it gave itself."""
        rows = [batch.scored.rows[i] for i in batch.sampled]
        after = [_to_tensor(logp) for logp in self._session.policy_logprobs(rows)]
        return policy_metrics(batch.scored, batch.sampled, after)

    def _take_clipped_step(
        self, sent: Sequence[DatumArrays], rate: float
    ) -> tuple[float | None, Sequence[DatumArrays]]:
        """Take the step with `train.optimizer.clip_grad`, also where the server ignores it.

        There the step is taken again from the start, with a gradient that is scaled down: it is linear in the
        advantages. Return the norm before that (None: not known), and what was sent last.
        """
        first = self._take_step_once(sent, rate)
        limit = self._train.optimizer.clip_grad
        if first.norm is None or first.is_clipped:
            return first.norm, sent
        if not limit < first.norm < math.inf:
            return first.norm, sent
        factor = limit / first.norm
        scaled = [replace(datum, advantages=datum.advantages * factor) for datum in sent]
        self._session.restore(self._state)
        again = self._take_step_once(scaled, rate)
        # The norm before scaling, unless the second step had none.
        norm = first.norm if again.norm else again.norm
        return norm, scaled

    def _take_step_once(self, sent: Sequence[DatumArrays], rate: float) -> _Taken:
        """Take the step.

        Where an answer is lost, the SDK repeats the call. A service that does not recognise it, such as SkyRL's, moves
        by its momentum again, with a gradient of 0: the step then starts over. If it stays 0, it is the batch's.
        """
        for _ in range(STEP_ATTEMPTS):
            norms = self._session.take_step(sent, rate)
            norm = next((norms[name] for name in _GRADIENT_NORMS if name in norms), None)
            if norm != 0:
                return _Taken(norm, is_clipped=_UNCLIPPED_NORM not in norms)
            log.warning(
                "the Tinker service took a step without a gradient, as when a call is repeated: it starts over"
            )
            self._session.restore(self._state)
        return _Taken(0.0, is_clipped=True)

    def _make_datum(self, batch: CreditedBatch, i: int, advantages: Any) -> DatumArrays:
        sample = batch.scored.samples[i]
        logp = batch.scored.student[i].numpy()
        return make_datum(sample.prompt_ids, sample.response_ids, logp, advantages)

    def _write_version(self, out: Path) -> None:
        """Save the checkpoints under the name of the version's folder, then write the folder."""
        state, sampler, adapter = self._session.save_version(f"openclaw-{out.name}")
        version = TinkerVersion(
            base=self._service.model, rank=self._train.lora.rank, sampler=sampler, state=state
        )
        counts = {
            "steps": self._frame.steps,
            "samples": self._frame.turns_seen,
            "settings": self._train.model_dump(mode="json"),
        }
        files = {
            TINKER_FILE: encode_version(version),
            state_files.STATE_FILE: json.dumps(counts, indent=2).encode(),
        }
        write_folder(out, files | adapter)
        self._state = state


def _to_tensor(logprobs: Logprobs) -> torch.Tensor:
    return torch.from_numpy(logprobs)


def _as_epoch(gradients: TokenGradients, *, norm: float) -> EpochResult:
    loss = gradients.loss
    values = {"total": loss.total.item()} | dict(loss.parts)
    return EpochResult(values=values, counts=loss.counts, norm=norm)


def _split_usable(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, Reason]]:
    """Return the samples that the service can compute on, and why the other turns are left out."""
    usable = []
    reasons = {}
    for sample in samples:
        if sample.temperature == 1:
            usable.append(sample)
        else:
            reasons[sample.turn] = Reason(
                ReasonCode.OTHER_TEMPERATURE,
                f"sampled at temperature {sample.temperature:g}; Tinker computes at temperature 1",
            )
    return usable, reasons
