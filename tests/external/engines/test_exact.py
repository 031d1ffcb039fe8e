"""Every number that a real vLLM gives, against transformers' and PEFT's forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.engines.contract_fixtures import BASE, EngineHarness
from tests.engines.test_contract import call, collect
from tests.external.engines.conftest import ADAPTERS, CONTEXT, Reference, Served, chosen

from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import Engine
from openclaw_rl.types import PolicyRef

EXACT = 1e-4
PROMPTS = [(np.arange(1, 1 + n) * 37 % 1500).astype(np.int32) for n in (1, 7, 40, 200)]


@pytest.fixture
def held(
    harness: EngineHarness, refs: dict[int, PolicyRef]
) -> Callable[[Callable[[VllmEngine], object]], None]:
    """Run a body with the base and all adapters loaded."""

    def run(body: Callable[[VllmEngine], object]) -> None:
        async def whole(engine: Engine) -> None:
            assert isinstance(engine, VllmEngine)
            await engine.load([BASE, *(refs[v] for v in ADAPTERS)])
            await body(engine)  # type: ignore[misc]

        harness.run(whole)

    return run


def test_sampled_logprobs_are_those_of_a_forward_pass(
    held: Callable[..., None], reference: Reference, report: Callable[[str], None]
) -> None:
    gaps: dict[int, list[np.ndarray]] = {}

    async def body(engine: VllmEngine) -> None:
        for version in (0, *ADAPTERS):
            for n, prompt in enumerate(PROMPTS):
                temperature = (1.0, 0.7, 1.3, 0.3)[n]
                reply = await collect(
                    engine, call(prompt, version=version, temperature=temperature, max_tokens=40)
                )
                logits = reference(version, prompt.tolist(), reply.token_ids)
                gaps.setdefault(version, []).append(
                    np.abs(chosen(logits, reply.token_ids, temperature) - reply.logprobs)
                )

    held(body)
    for version, found in gaps.items():
        gap = np.concatenate(found)
        report(
            f"vLLM against a forward pass, version {version}: mean |difference| {gap.mean():.2e}, max {gap.max():.2e}"
        )
        assert gap.max() < EXACT, f"version {version}"


def test_alternatives_are_the_likeliest(held: Callable[..., None], reference: Reference) -> None:
    async def body(engine: VllmEngine) -> None:
        reply = await collect(
            engine, call(PROMPTS[2], version=1, temperature=0.8, top=5, max_tokens=10)
        )
        rows = (reference(1, PROMPTS[2].tolist(), reply.token_ids) / 0.8).log_softmax(-1)
        for row, top in zip(rows, reply.top, strict=True):
            best = row.topk(5)
            np.testing.assert_allclose([lp for _, lp in top], best.values.numpy(), atol=EXACT)

    held(body)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_those_of_a_forward_pass(
    held: Callable[..., None], reference: Reference, temperature: float
) -> None:
    rng = np.random.default_rng(0)

    async def body(engine: VllmEngine) -> None:
        for version, (p, r) in ((0, (5, 30)), (1, (100, 1)), (2, (1, 60)), (3, (CONTEXT - 12, 12))):
            prompt, response = (rng.integers(3, 1800, n).astype(np.int32) for n in (p, r))
            scores = await engine.score(
                version=version, prompt_ids=prompt, response_ids=response, temperature=temperature
            )
            expected = chosen(
                reference(version, prompt.tolist(), response.tolist()),
                response.tolist(),
                temperature,
            )
            np.testing.assert_allclose(scores, expected, atol=EXACT)

    held(body)


def test_the_models_own_sampling_defaults_are_off_and_ours_are_on(
    held: Callable[..., None],
) -> None:
    async def body(engine: VllmEngine) -> None:
        greedy = await collect(engine, call(temperature=0.0, max_tokens=6))
        only = await collect(engine, call(temperature=1.0, top_k=1, max_tokens=6))
        narrow = await collect(engine, call(temperature=1.0, min_p=1.0, max_tokens=6))
        assert only.token_ids == narrow.token_ids == greedy.token_ids
        assert only.logprobs == pytest.approx([0.0] * 6, abs=1e-6), (
            "processed: what was cut is not in it"
        )
        forced = await collect(engine, call(logit_bias={77: 100.0}, max_tokens=3))
        assert forced.token_ids == (77, 77, 77)
        tired = await collect(
            engine, call(logit_bias={77: 20.0, 78: 19.5}, frequency_penalty=2.0, max_tokens=8)
        )
        assert set(tired.token_ids) == {77, 78}

    held(body)


def test_a_grammar_forces_the_reply(held: Callable[..., None], served: Served) -> None:
    async def body(engine: VllmEngine) -> None:
        assert (await engine.info()).grammar
        grammar = '%llguidance {}\nstart: ("1" | "2") "7"'
        stop = served.stop_token_ids
        for seed in range(6):
            reply = await collect(
                engine, call(version=1, grammar=grammar, stop=stop, seed=seed, max_tokens=20)
            )
            assert served.decode(reply.token_ids) in ("17", "27")
            assert reply.finish == "stop"

    held(body)


def test_what_the_server_refuses_comes_in_its_words_and_harms_nothing(
    held: Callable[..., None],
) -> None:
    async def body(engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match="vocab"):
            await collect(engine, call(np.array([1, 999_999], dtype=np.int32)))
        with pytest.raises(EngineError, match="grammar"):
            await collect(engine, call(grammar="this is : no (grammar"))
        assert (await collect(engine, call())).finish == "length"

    held(body)


def test_a_key_that_is_wrong_and_a_convention_that_differs_are_explained(served: Served) -> None:
    """On a second server would be dearer: the first is asked with settings that do not fit it."""

    async def ask() -> None:
        config = served.config.engine.model_copy(update={"logprob_convention": "raw"})
        engine = VllmEngine(
            HttpClient("http://vllm", socket=served.config.engine_socket),
            config,
            folder=served.config.home_dir,
        )
        with pytest.raises(EngineError, match="returns processed log-probabilities, expected raw"):
            await engine.info()
        await engine.close()

    import asyncio

    asyncio.run(ask())
