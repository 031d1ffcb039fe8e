"""Calls of the trainer to the Tinker service: scoring, one optimizer step, and checkpoints. They block.

Raises `TrainerAbsent` for a service that does not answer or refuses the account, and for a call that would exceed
`tinker.budget_tokens`, so that the batch stays free and is tried again; `TooLarge` for a sequence that is too long;
`ModelError` for anything else about the batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from openclaw_rl.common.progress import library_call
from openclaw_rl.errors import EngineError, EngineGone, ModelError, TooLarge, TrainerAbsent
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.tinker.datum_arrays import (
    DatumArrays,
    make_datum,
    response_part,
    scale_for_reduction,
)
from openclaw_rl.learner.tinker.training_budget import TrainingBudget
from openclaw_rl.settings.load import TinkerConfig, TrainConfig
from openclaw_rl.tinker.adapter_download import LocalBase, download_adapter
from openclaw_rl.tinker.service import CheckpointKind, TinkerService
from openclaw_rl.tinker.service_errors import classify_error
from openclaw_rl.types import Logprobs

T = TypeVar("T")
# Seconds between two attempts: each one makes a model at the service.
RETRY_SECONDS = 10.0
# The same after refusals in a row: each attempt pays for the tokens of the batch again.
LONGEST_RETRY_SECONDS = 600.0
# As torch's AdamW, which the local trainer uses.
ADAM_EPS = 1e-8


class TrainingSession:
    """One LoRA model at the service, and a sampling client of the base."""

    def __init__(
        self,
        service: TinkerService,
        tinker: TinkerConfig,
        train: TrainConfig,
        usage: TrainingBudget,
        local_base: LocalBase | None = None,
    ) -> None:
        """`local_base`: of the engine for which adapters are downloaded; None: the service samples."""
        self._service = service
        self._tinker = tinker
        self._train = train
        self._usage = usage
        self._local_base = local_base
        self._client: Any = None
        self._base: Any = None
        # State of this model before its first step; None: not saved.
        self._initial: str | None = None
        # When the service failed, and how.
        self._failed: tuple[float, TrainerAbsent] | None = None
        # In a row, since the last version: failures that do not pass by themselves.
        self._refusals = 0

    def restore(self, state: str | None) -> None:
        """Make the service's model that of a checkpoint; None: the base with a new adapter.

        Each step begins so: what an earlier step did there, whose answer may be lost, has no effect on it. After a
        failure of the service it is not asked for `RETRY_SECONDS`, and twice as long after each further refusal.
        """
        if self._failed is not None:
            failed_at, error = self._failed
            if time.monotonic() - failed_at < self._retry_seconds:
                raise error
        needs_initial = state is None and self._initial is None
        if self._client is None or needs_initial:
            self._client = self._run_blocking(self._create_model)
            self._initial = None
        path = self._initial_checkpoint() if state is None else state
        self._finish(lambda: self._client.load_state_with_optimizer(path))

    def _initial_checkpoint(self) -> str:
        """Return the checkpoint of the base with a new adapter, saved if it is not there yet."""
        if self._initial is None:
            self._initial = self._save_checkpoint("weights", f"initial-{uuid.uuid4().hex[:12]}")
        return self._initial

    @property
    def _retry_seconds(self) -> float:
        doublings = min(max(0, self._refusals - 1), 10)
        return min(RETRY_SECONDS * 2.0**doublings, LONGEST_RETRY_SECONDS)

    def _create_model(self) -> Any:
        """A local engine gets the matrices that the local trainer has: none of the output layer."""
        return self._service.create_model(
            rank=self._train.lora.rank, seed=self._train.seed, adapts_head=self._local_base is None
        )

    def reset(self) -> None:
        """Forget the model at the service, which may be gone: the next call makes another one."""
        self._client = self._base = self._initial = None

    def policy_logprobs(self, rows: Sequence[TokenSequence]) -> list[Logprobs]:
        """Return [R] log-probabilities of each response under the model as it is at the service."""
        data = [make_datum(row.prompt_ids, row.response_ids) for row in rows]
        self._usage.spend_tokens(forward_tokens(rows), trained=False)
        sent = self._to_sdk(data, "cross_entropy")
        loss = "cross_entropy"
        answer = self._finish(lambda: self._client.forward(sent, loss), of_batch=True)
        return self._run_blocking(
            lambda: _response_parts(
                rows, [output["logprobs"].tolist() for output in answer.loss_fn_outputs]
            )
        )

    def base_logprobs(self, rows: Sequence[TokenSequence]) -> list[Logprobs]:
        """Return [R] log-probabilities of each response under the base."""
        if not rows:
            return []
        if self._base is None:
            self._base = self._run_blocking(lambda: self._service.create_sampler(None))
        sequences = [[*row.prompt_ids.tolist(), *row.response_ids.tolist()] for row in rows]
        self._usage.spend_tokens(scoring_tokens(rows), trained=False)
        started = [self._service.start_scoring(self._base, ids) for ids in sequences]
        answers = [self._wait_started(one) for one in started]
        return self._run_blocking(lambda: _response_parts(rows, answers))

    def take_step(self, data: Sequence[DatumArrays], rate: float) -> dict[str, float]:
        """Take one optimizer step on the importance-sampling loss. Return the service's metrics of it."""
        optimizer = self._train.optimizer
        adam = self._service.sdk.AdamParams(
            learning_rate=rate,
            beta1=optimizer.adam_beta1,
            beta2=optimizer.adam_beta2,
            eps=ADAM_EPS,
            weight_decay=optimizer.weight_decay,
            grad_clip_norm=optimizer.clip_grad,
        )
        self._usage.spend_tokens(sum(len(datum.input_ids) for datum in data), trained=True)
        loss = "importance_sampling"
        sent = self._to_sdk(data, loss)
        self._finish(lambda: self._client.forward_backward(sent, loss), of_batch=True)
        return dict(self._finish(lambda: self._client.optim_step(adam)).metrics or {})

    def save_version(self, name: str) -> tuple[str, str, dict[str, bytes]]:
        """Save the model under a new name. Return the paths of its state, and of its weights for sampling.

        And the files of the adapter by name, if a local engine serves it.
        """
        state = self._save_checkpoint("weights", name)
        sampler = self._save_checkpoint("sampler_weights", name)
        files = {} if self._local_base is None else self._download_adapter(name, self._local_base)
        self._refusals = 0
        return state, sampler, files

    def _download_adapter(self, name: str, base: LocalBase) -> dict[str, bytes]:
        url = self._run_blocking(lambda: self._service.find_archive(self._client, name))
        return self._run_blocking(
            lambda: self._service.run_blocking(lambda: download_adapter(url, base))
        )

    def _save_checkpoint(self, kind: CheckpointKind, name: str) -> str:
        return self._run_blocking(lambda: self._service.save_checkpoint(self._client, kind, name))

    def _to_sdk(self, data: Sequence[DatumArrays], loss: str) -> list[Any]:
        sdk = self._service.sdk
        converted = []
        for datum, advantages in zip(
            data, scale_for_reduction(data, self._tinker.reduction), strict=True
        ):
            inputs: dict[str, Any] = {"target_tokens": datum.target_ids.tolist()}
            if loss == "importance_sampling":
                inputs |= {"logprobs": datum.logprobs.tolist(), "advantages": advantages.tolist()}
            converted.append(
                sdk.Datum(
                    model_input=self._service.model_input(datum.input_ids), loss_fn_inputs=inputs
                )
            )
        return converted

    def _finish(self, start: Callable[[], Any], *, of_batch: bool = False) -> Any:
        """Start a call of the SDK and wait for its answer, `tinker.call_timeout` seconds at most.

        `of_batch`: the call has the batch in it, which may be why it fails.
        """
        return self._run_blocking(
            lambda: start().result(timeout=self._tinker.call_timeout), of_batch=of_batch
        )

    def _wait_started(self, started: Any) -> Any:
        return self._finish(lambda: started, of_batch=True)

    def _run_blocking(self, call: Callable[[], T], *, of_batch: bool = False) -> T:
        try:
            with library_call():
                return call()
        except TimeoutError:
            raise self._absent(self._service.timeout_error()) from None
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries
            raise self._to_trainer_error(error, of_batch=of_batch) from None

    def _to_trainer_error(self, error: Exception, *, of_batch: bool) -> Exception:
        if isinstance(error, ModelError):
            return error
        engine_error = self._service.to_engine_error(error)
        if not of_batch or isinstance(error, EngineError):
            return self._absent(engine_error)
        kind = classify_error(error)
        if kind == "absent":
            return self._absent(engine_error)
        self.reset()
        if kind == "too_long":
            return TooLarge(str(engine_error))
        return ModelError(str(engine_error))

    def _absent(self, error: EngineError) -> TrainerAbsent:
        # Gradients of a call without an answer may be there.
        self.reset()
        self._refusals += not isinstance(error, EngineGone)
        self._failed = time.monotonic(), TrainerAbsent(str(error))
        return self._failed[1]


def forward_tokens(rows: Sequence[TokenSequence]) -> int:
    """Return the tokens that a pass of the model takes: all but the last of each sequence."""
    return scoring_tokens(rows) - len(rows)


def scoring_tokens(rows: Sequence[TokenSequence]) -> int:
    """Return the tokens that scoring by the base takes."""
    return sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)


def _response_parts(rows: Sequence[TokenSequence], answers: Sequence[Any]) -> list[Logprobs]:
    """Return [R] values of each response. Raises `EngineError` for an answer that has not all of them."""
    if len(answers) != len(rows):
        raise EngineError(
            f"Tinker returned log-probabilities of {len(answers)} of {len(rows)} sequences; expected all"
        )
    return [
        response_part(values, len(row.response_ids))
        for row, values in zip(rows, answers, strict=True)
    ]
