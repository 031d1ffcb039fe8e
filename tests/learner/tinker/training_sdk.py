"""A double of the training surface of the Tinker SDK: a model of one matrix: each token depends on the one before.

It computes as the service does: importance-sampling loss summed over tokens, Adam with clipping, checkpoints by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

MODEL, VOCABULARY = "org/model", 16
RUN = "tinker://run/"  # what the service's identifiers of checkpoints do not have


@cache
def base_logits() -> torch.Tensor:
    return torch.randn(
        VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )


def sequence_logprobs(
    logits: torch.Tensor, inputs: Sequence[int], targets: Sequence[int]
) -> torch.Tensor:
    """[N] log-probabilities of the targets. Ids of a larger vocabulary share rows."""
    return logits.log_softmax(-1)[
        torch.as_tensor(inputs) % VOCABULARY, torch.as_tensor(targets) % VOCABULARY
    ]


class ApiFuture(Future[Any]):
    """As the SDK's `APIFuture`, which has a future of the standard library."""

    def future(self) -> ApiFuture:
        return self


def finished(call: Callable[[], Any]) -> ApiFuture:
    future = ApiFuture()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - of the test
        future.set_exception(error)
    return future


class AdapterDouble:
    """A training client. `delta` is the adapter: zero at first."""

    def __init__(self, sdk: TrainingSdk) -> None:
        self.sdk, self.model_id = sdk, "run"
        self.delta = torch.zeros_like(base_logits()).requires_grad_()
        self.moments: dict[str, Any] = {}

    def _logprobs(self, datum: SimpleNamespace) -> torch.Tensor:
        logits = base_logits() + self.delta
        return sequence_logprobs(logits, datum.model_input, datum.loss_fn_inputs["target_tokens"])

    def _outputs(self, data: Sequence[SimpleNamespace]) -> SimpleNamespace:
        found = [{"logprobs": self._logprobs(datum).detach()} for datum in data]
        return SimpleNamespace(loss_fn_outputs=found, metrics={})

    def forward(self, data: Sequence[SimpleNamespace], loss: str) -> Future[Any]:
        assert loss == "cross_entropy"
        return finished(lambda: self.sdk.answer("forward", lambda: self._outputs(data)))

    def forward_backward(self, data: Sequence[SimpleNamespace], loss: str) -> Future[Any]:
        assert loss == "importance_sampling"

        def run() -> SimpleNamespace:
            total = torch.zeros((), dtype=torch.float64)
            for datum in data:
                given = {
                    name: torch.tensor(values) for name, values in datum.loss_fn_inputs.items()
                }
                ratio = (self._logprobs(datum) - given["logprobs"]).exp()
                sums = -(ratio * given["advantages"]).sum()
                total = total + (
                    sums / len(datum.model_input) / len(data)
                    if self.sdk.reduction == "mean"
                    else sums
                )
            total.backward()
            assert self.delta.grad is not None
            self.sdk.gradients.append(self.delta.grad.clone())
            return self._outputs(data)

        return finished(lambda: self.sdk.answer("forward_backward", run))

    def optim_step(self, adam: SimpleNamespace) -> Future[Any]:
        def run() -> SimpleNamespace:
            if (
                self.delta.grad is None
            ):  # a call that is repeated: SkyRL's server applies a gradient of 0
                self.delta.grad = torch.zeros_like(self.delta)
            limit = adam.grad_clip_norm if self.sdk.clips else float("inf")
            norm = torch.nn.utils.clip_grad_norm_([self.delta], limit)
            betas = (adam.beta1, adam.beta2)
            optimizer = torch.optim.AdamW(
                [self.delta], lr=adam.learning_rate, betas=betas, eps=adam.eps
            )
            optimizer.param_groups[0]["weight_decay"] = adam.weight_decay
            if self.moments:
                optimizer.load_state_dict({**optimizer.state_dict(), "state": self.moments})
            optimizer.step()
            self.moments = optimizer.state_dict()["state"]
            self.delta.grad = None
            self.sdk.steps.append(adam.learning_rate)
            return SimpleNamespace(
                metrics={"grad_norm" if self.sdk.clips else "skyrl.ai/grad_norm": norm.item()}
            )

        return finished(lambda: self.sdk.answer("optim_step", run))

    def save_state(self, name: str) -> ApiFuture:
        return self._start_saving("save_state", f"tinker://run/weights/{name}")

    def save_weights_for_sampler(self, name: str) -> ApiFuture:
        return self._start_saving("save_sampler", f"tinker://run/sampler_weights/{name}")

    def _start_saving(self, call: str, path: str) -> ApiFuture:
        done = finished(lambda: self.sdk.answer(call, lambda: self._save(path)))
        if call not in self.sdk.silent:
            return done
        self.sdk.silent[call] = ApiFuture()
        return self.sdk.silent[call]

    def _save(self, path: str) -> SimpleNamespace:
        assert path not in self.sdk.saved, "the service refuses a name twice"
        copied = {
            key: {k: v.clone() for k, v in state.items()} for key, state in self.moments.items()
        }
        self.sdk.saved[path] = self.delta.detach().clone(), copied
        return SimpleNamespace(path=path)

    def load_state_with_optimizer(self, path: str) -> Future[Any]:
        def run() -> None:
            self.sdk.restored.append(path)
            delta, moments = self.sdk.saved[path]
            self.delta = delta.clone().requires_grad_()
            self.moments = {
                key: {k: v.clone() for k, v in state.items()} for key, state in moments.items()
            }

        return finished(lambda: self.sdk.answer("load_state", run))


@dataclass
class TrainingSdk:
    """The module `tinker`. `fails`: call -> error that it raises once; `loses`: calls that work and then raise it.

    `repeats`: call -> how often it is done twice: its answer is lost, and the SDK repeats it. `changes`: call -> what
    becomes of its next answer. `silent`: calls that save, without an answer -> what waits for the newest of them.
    """

    reduction: str = "sum"
    clips: bool = True  # False: as SkyRL's server, which ignores the norm to clip at
    saved: dict[str, Any] = field(default_factory=dict)
    restored: list[str] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # learning rates
    models: list[dict[str, Any]] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    loses: dict[str, Exception] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    changes: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    silent: dict[str, ApiFuture] = field(default_factory=dict)
    archives: str = ""  # address below which the archives of checkpoints are

    def answer(self, call: str, run: Callable[[], Any]) -> Any:
        if call in self.fails:
            raise self.fails.pop(call)
        if self.repeats.get(call, 0) > 0:
            self.repeats[call] -= 1
            run()
        found = run()
        if call in self.loses:
            raise self.loses.pop(call)
        return self.changes.pop(call, lambda answer: answer)(found)

    class ModelInput:
        @staticmethod
        def from_ints(ids: Sequence[int]) -> list[int]:
            return list(ids)

    @staticmethod
    def Datum(**given: Any) -> SimpleNamespace:  # noqa: N802 - a name of the SDK
        return SimpleNamespace(**given)

    @staticmethod
    def AdamParams(**given: Any) -> SimpleNamespace:  # noqa: N802 - a name of the SDK
        return SimpleNamespace(**given)

    def ServiceClient(self, **given: Any) -> TrainingSdk:  # noqa: N802 - a name of the SDK
        self.answer("connect", lambda: None)
        return self

    def get_server_capabilities(self) -> SimpleNamespace:
        return SimpleNamespace(
            supported_models=[SimpleNamespace(model_name=MODEL, max_context_length=64)]
        )

    def create_lora_training_client(self, **given: Any) -> AdapterDouble:
        self.models.append(given)
        return self.answer("create", lambda: AdapterDouble(self))

    def create_sampling_client(self, **given: Any) -> TrainingSdk:
        assert given == {"base_model": MODEL}
        return self

    def create_rest_client(self) -> TrainingSdk:
        return self

    def list_checkpoints(self, run: str) -> Future[Any]:
        assert run == "run"
        found = [
            SimpleNamespace(tinker_path=path, checkpoint_id=path.removeprefix(RUN))
            for path in self.saved
        ]
        return finished(lambda: self.answer("list", lambda: SimpleNamespace(checkpoints=found)))

    def get_checkpoint_archive_url(self, run: str, checkpoint: str) -> Future[Any]:
        assert run == "run"
        assert RUN + checkpoint in self.saved
        return finished(
            lambda: self.answer(
                "archive", lambda: SimpleNamespace(url=f"{self.archives}/{checkpoint}")
            )
        )

    def compute_logprobs(self, ids: list[int]) -> Future[Any]:
        found = lambda: [None, *sequence_logprobs(base_logits(), ids[:-1], ids[1:]).tolist()]  # noqa: E731
        return finished(lambda: self.answer("score", found))
