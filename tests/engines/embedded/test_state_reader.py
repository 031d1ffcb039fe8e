"""Hidden states of the base against a direct forward pass of transformers, and their place behind replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.contract_fixtures import closing
from transformers import AutoModelForCausalLM

from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.sequence import StateSequence, StatesFailed, StatesRead
from openclaw_rl.engines.embedded.state_reader import (
    BUSY_STEPS,
    LATE_BUSY_STEPS,
    LATE_SECONDS,
    MAX_CHUNK,
    StateReader,
)
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import StateEngine
from openclaw_rl.settings.load import STARTER, ModelConfig
from openclaw_rl.types import Generation, PolicyRef, Sampling, StateRequest

DEPTHS = (0.5, 1.0)


@pytest.fixture(scope="module")
def model() -> EmbeddedModel:
    return EmbeddedModel.load(ModelConfig(path=STARTER, device="cpu"))


@pytest.fixture(scope="module")
def direct() -> Callable[[Sequence[int]], list[torch.Tensor]]:
    """States [Q, D] of each layer, by one whole pass of transformers."""
    reference = AutoModelForCausalLM.from_pretrained(
        str(local_model_folder(STARTER)), dtype=torch.float32
    ).eval()

    @torch.no_grad()
    def states(ids: Sequence[int]) -> list[torch.Tensor]:
        out = reference(input_ids=torch.tensor([list(ids)]), output_hidden_states=True)
        return [layer[0] for layer in out.hidden_states]

    return states


def request(length: int, *, shared: int = 0, seed: int = 0, vocab: int = 200) -> StateRequest:
    """A text whose first 100 tokens are those of every other one."""
    beginning = np.random.default_rng(99).integers(1, vocab, 100)
    rest = np.random.default_rng(seed).integers(1, vocab, max(0, length - 100))
    ids = np.concatenate([beginning, rest])[:length].astype(np.int32)
    spans = ((length - 1, length), (min(shared, length - 4), length - 2))
    return StateRequest(ids=ids, depths=DEPTHS, spans=spans, shared=shared)


def read_all(reader: StateReader, *requests: StateRequest) -> list[np.ndarray]:
    seqs = [reader.read(number, one) for number, one in enumerate(requests)]
    states: dict[StateSequence, np.ndarray] = {}
    while reader.has_work:
        for event in reader.step(is_busy=False):
            assert isinstance(event, StatesRead)
            states[event.seq] = event.states
    return [states[seq] for seq in seqs]


def expected(
    direct: Callable[[Sequence[int]], list[torch.Tensor]], one: StateRequest
) -> np.ndarray:
    layers = direct(one.ids.tolist())
    last = len(layers) - 1
    chosen = [layers[max(1, round(depth * last))] for depth in one.depths]
    return np.stack(
        [
            np.stack([layer[start:end].mean(0).numpy() for start, end in one.spans])
            for layer in chosen
        ]
    )


@pytest.mark.parametrize("shared", [0, 40])
def test_states_equal_those_of_a_direct_forward_pass(
    model: EmbeddedModel, direct: Callable[[Sequence[int]], list[torch.Tensor]], shared: int
) -> None:
    requests = [request(n, shared=shared, seed=n) for n in (60, 121, 60, 200)]
    for one, states in zip(requests, read_all(StateReader(model), *requests), strict=True):
        assert states.dtype == np.float32
        np.testing.assert_allclose(states, expected(direct, one), atol=2e-4)


def test_a_shared_beginning_is_read_once(model: EmbeddedModel) -> None:
    reader = StateReader(model)
    (first,) = read_all(reader, request(150, shared=96, seed=1))
    one = request(150, shared=96, seed=1)
    seq = reader.read("again", one)
    events = reader.step(is_busy=False)
    assert seq.read > 96, "the first chunk began behind the shared beginning"
    while reader.has_work:
        events = reader.step(is_busy=False)
    (event,) = events
    assert isinstance(event, StatesRead)
    np.testing.assert_allclose(event.states, first, atol=1e-5)


@pytest.mark.parametrize(("waited", "steps"), [(0.0, BUSY_STEPS), (LATE_SECONDS, LATE_BUSY_STEPS)])
def test_replies_come_first(model: EmbeddedModel, waited: float, steps: int) -> None:
    reader = StateReader(model)
    seq = reader.read("one", request(60))
    seq.queued_at -= waited
    for _ in range(steps - 1):
        assert reader.step(is_busy=True) == []
        assert seq.read == 0
    reader.step(is_busy=True)
    assert 0 < seq.read <= MAX_CHUNK, "beside replies that leave no pause, one chunk is read"


def test_a_cancelled_text_is_not_read(model: EmbeddedModel) -> None:
    reader = StateReader(model)
    seq = reader.read("one", request(60))
    reader.cancel(seq)
    assert not reader.has_work
    assert reader.step(is_busy=False) == []


def test_a_text_that_does_not_fit_into_memory_fails_alone(
    model: EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = StateReader(model)
    reader.read("large", request(60))
    with monkeypatch.context() as patch:

        def run_out(*arguments: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        patch.setattr(model, "hidden_states", run_out)
        (event,) = reader.step(is_busy=False)
    assert isinstance(event, StatesFailed)
    assert len(read_all(reader, request(60))) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": np.zeros(0, dtype=np.int32)}, "the text has 0 tokens"),
        ({"ids": np.full(9000, 1, dtype=np.int32)}, "the text has 9000 tokens; expected 1 to"),
        ({"ids": np.array([1, 10**6], dtype=np.int32)}, "contains id 1000000"),
        ({"spans": ((1, 1),)}, "span 1 to 1 is not in the 3 tokens"),
        ({"spans": ((0, 4),)}, "span 0 to 4 is not in the 3 tokens"),
        ({"spans": ()}, "at least one span"),
    ],
)
def test_a_wrong_request_is_refused(
    model: EmbeddedModel, change: dict[str, object], words: str
) -> None:
    right = {"ids": np.array([1, 2, 3], dtype=np.int32), "depths": (0.5,), "spans": ((0, 1),)}
    with pytest.raises(EngineError, match=words):
        StateReader(model).read("one", StateRequest(**(right | change)))  # type: ignore[arg-type]


def test_the_engine_process_reads_the_base_beside_a_version(
    process: Any,
    refs: dict[int, PolicyRef],
) -> None:
    """Version 1 alone is loaded, and a reply of it runs: the states are still those of the base, again and again."""

    async def body() -> None:
        async with closing(EngineClient(process.socket)) as client:
            assert isinstance(client, StateEngine)
            one = StateRequest(
                ids=np.arange(1, 30, dtype=np.int32), depths=(0.5,), spans=((28, 29),)
            )
            before = await client.read_states(one)
            await client.load([refs[1]])
            call = Generation(
                id="g",
                version=1,
                prompt_ids=np.arange(1, 9, dtype=np.int32),
                sampling=Sampling(max_tokens=40, seed=1),
                stop_token_ids=(),
            )
            stream = client.generate(call)
            await anext(stream)
            assert np.array_equal(await client.read_states(one), before)
            await stream.aclose()  # type: ignore[attr-defined]
            with pytest.raises(EngineError, match="at least one span"):
                await client.read_states(StateRequest(ids=one.ids, depths=(0.5,), spans=()))

    asyncio.run(body())
