"""A double of as much of the Tinker SDK as the engine uses, with `ScriptedEngine` in the place of the service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Generation, Sampling

MODEL = "org/model"


class StatusError(Exception):
    """As the SDK's `APIStatusError`."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


def end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Cancel what runs in the loop of a thread, and close it."""

    async def cancel_all() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(240)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(240)
    loop.close()


@dataclass
class SdkDouble:
    """The module `tinker`. `failures`: errors that the next calls raise.

    Calls: connect, capabilities, model, sampler, sample, score.
    """

    engine: ScriptedEngine
    context: int | None = 512
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    opened: list[dict[str, Any]] = field(default_factory=list)  # arguments of each session
    closed: int = 0  # sessions whose heartbeats were ended
    params: list[SimpleNamespace] = field(default_factory=list)  # sampling parameters of each reply
    samplers: list[dict[str, Any]] = field(
        default_factory=list
    )  # arguments of each sampling client
    models: list[ModelDouble] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)  # ids of the models that the service lost
    hang: bool = False  # no sample ever ends
    answer: Callable[[Any], Any] = lambda found: found  # what becomes of each answer

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        end_loop(self._loop, self._thread)

    def fail(self, call: str) -> None:
        if self.failures.get(call):
            raise self.failures[call].pop(0)

    class ModelInput:
        @staticmethod
        def from_ints(ids: Sequence[int]) -> list[int]:
            return list(ids)

    @staticmethod
    def SamplingParams(**given: Any) -> SimpleNamespace:  # noqa: N802 - a name of the SDK
        return SimpleNamespace(
            **{"seed": None, "temperature": 1.0, "top_p": 1.0, "top_k": -1} | given
        )

    def ServiceClient(self, **given: Any) -> ServiceDouble:  # noqa: N802 - a name of the SDK
        self.opened.append(given)
        self.fail("connect")
        return ServiceDouble(self)

    def start(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def check_model(sdk: SdkDouble, model: int | None) -> None:
    if model in sdk.lost:
        raise ValueError(
            f"Error retrieving result: Model model_{model} not loaded (likely stale request)"
        )


@dataclass
class ServiceDouble:
    sdk: SdkDouble

    @property
    def holder(self) -> ServiceDouble:
        return self

    def close(self) -> None:
        self.sdk.closed += 1

    def get_server_capabilities(self) -> SimpleNamespace:
        self.sdk.fail("capabilities")
        model = SimpleNamespace(model_name=MODEL, max_context_length=self.sdk.context)
        return SimpleNamespace(supported_models=[model])

    def create_sampling_client(self, **given: Any) -> SamplerDouble:
        self.sdk.samplers.append(given)
        self.sdk.fail("sampler")
        path = given.get("model_path")
        version = 0 if path is None else int(path.rpartition("-")[2])
        self.sdk.engine.held.add(version)
        model = int(path.split("/")[3]) if path and path.startswith("tinker://model/") else None
        return SamplerDouble(self.sdk, version, model)

    def create_lora_training_client(
        self, *, base_model: str, rank: int, seed: int | None, train_unembed: bool
    ) -> ModelDouble:
        assert (base_model, seed) == (MODEL, None)
        self.sdk.fail("model")
        self.sdk.models.append(ModelDouble(self.sdk, len(self.sdk.models), rank))
        return self.sdk.models[-1]


@dataclass
class ModelDouble:
    """A training client that only loads states and saves them for sampling."""

    sdk: SdkDouble
    id: int
    rank: int
    states: list[str] = field(default_factory=list)

    def load_state(self, path: str) -> Future[Any]:
        self.states.append(path)
        return self.sdk.start(self._load())

    async def _load(self) -> None:
        check_model(self.sdk, self.id)

    def save_weights_for_sampler(self, name: str) -> SimpleNamespace:
        version = self.states[-1].rpartition("-")[2]
        path = f"tinker://model/{self.id}/{name}-{version}"
        saving = self.sdk.start(asyncio.sleep(0, SimpleNamespace(path=path)))
        return SimpleNamespace(future=lambda: saving)


@dataclass
class SamplerDouble:
    sdk: SdkDouble
    version: int
    # Id of the model that answers; None: the service's own copy of a checkpoint.
    model: int | None = None

    def sample(
        self, *, prompt: list[int], num_samples: int, sampling_params: SimpleNamespace
    ) -> Future[Any]:
        assert num_samples == 1
        self.sdk.params.append(sampling_params)
        return self.sdk.start(self._sample(prompt, sampling_params))

    async def _sample(self, prompt: list[int], params: SimpleNamespace) -> Any:
        self.sdk.fail("sample")
        check_model(self.sdk, self.model)
        if self.sdk.hang:
            await asyncio.Event().wait()
        generation = Generation(
            id="g",
            version=self.version,
            prompt_ids=np.array(prompt, dtype=np.int32),
            sampling=Sampling(max_tokens=params.max_tokens),
            stop_token_ids=tuple(params.stop or ()),
        )
        tokens, logprobs, finish = [], [], None
        async for chunk in self.sdk.engine.generate(generation):
            tokens += chunk.token_ids
            logprobs += chunk.logprobs
            finish = chunk.finish
        reply = SimpleNamespace(tokens=tokens, logprobs=logprobs, stop_reason=finish)
        return self.sdk.answer(SimpleNamespace(sequences=[reply]))

    def compute_logprobs(self, prompt: list[int]) -> Future[Any]:
        return self.sdk.start(self._score(prompt))

    async def _score(self, ids: list[int]) -> list[float | None]:
        self.sdk.fail("score")
        whole = np.array(ids, dtype=np.int32)
        found = await self.sdk.engine.score(
            version=self.version, prompt_ids=whole[:1], response_ids=whole[1:], temperature=1.0
        )
        return [None, *found.tolist()]
