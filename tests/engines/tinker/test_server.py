"""What the engine for Tinker does with calls, answers and failures of the service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.engines.contract_fixtures import BASE, EngineHarness, closing
from tests.engines.test_contract import PROMPT, call, collect
from tests.engines.tinker.conftest import Connect
from tests.engines.tinker.tinker_sdk import SdkDouble, ServiceDouble, StatusError

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.errors import EngineError, EngineGone, GrammarError, SamplingUnsupported
from openclaw_rl.protocols import Engine
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import PolicyRef


def run(client: EngineClient, body: Callable[[EngineClient], Awaitable[Any]]) -> Any:
    async def run_body() -> Any:
        async with closing(client):
            return await body(client)

    return asyncio.run(asyncio.wait_for(run_body(), 300))


def test_a_reply_arrives_whole_with_ids_and_logprobs(
    harness: EngineHarness, sdk: SdkDouble
) -> None:
    async def body(engine: Engine) -> None:
        chunks = [chunk async for chunk in engine.generate(call(max_tokens=20, seed=2**40 + 3))]
        assert [(len(c.token_ids), len(c.logprobs), c.finish) for c in chunks] == [
            (20, 20, "length")
        ]
        scores = await engine.score(
            version=1,
            prompt_ids=PROMPT,
            response_ids=np.array(chunks[0].token_ids, dtype=np.int32),
            temperature=1.0,
        )
        np.testing.assert_allclose(scores, chunks[0].logprobs, atol=1e-6)

    harness.run(body)
    params = sdk.params[-1]
    assert (params.max_tokens, params.seed, params.temperature, params.top_p, params.top_k) == (
        20,
        3,
        1.0,
        1.0,
        -1,
    )


def test_versions_are_sampler_checkpoints_side_by_side(
    harness: EngineHarness, sdk: SdkDouble
) -> None:
    async def body(engine: Engine) -> None:
        await engine.load([harness.version(n) for n in (1, 2, 3)])
        replies = [await collect(engine, call(version=n)) for n in (1, 2, 3)]
        assert len({reply.logprobs for reply in replies}) == 3
        running = asyncio.create_task(collect(engine, call(version=1, max_tokens=400)))
        while await harness.running(engine) == 0:
            await asyncio.sleep(0.001)
        await engine.load([harness.version(n) for n in (2, 3)])
        with pytest.raises(EngineError, match="version 1 is not loaded"):
            await collect(engine, call(version=1))
        assert len((await running).token_ids) == 400

    harness.run(body)
    paths = [given.get("model_path") for given in sdk.samplers]
    assert paths == ["tinker://run/v-1", None, "tinker://run/v-2", "tinker://run/v-3"]


def test_versions_answer_from_models_of_their_own(
    connect: Connect, version: Callable[[int], PolicyRef], sdk: SdkDouble
) -> None:
    async def body(engine: EngineClient) -> None:
        await engine.load([BASE, version(1), version(2)])
        first = {n: (await collect(engine, call(version=n))).logprobs for n in (1, 2)}
        assert first[1] != first[2]
        assert [model.states for model in sdk.models] == [
            ["tinker://run/s-1"],
            ["tinker://run/s-2"],
        ]
        await engine.load([BASE, version(2)])
        await engine.load([BASE, version(2), version(3)])
        assert sdk.models[0].states[-1] == "tinker://run/s-3", "the model of version 1 was free"
        sdk.lost = {0, 1}  # the service was started again
        assert (await collect(engine, call(version=2))).logprobs == first[2]
        await collect(engine, call(version=3))
        assert [(model.rank, model.states) for model in sdk.models[2:]] == [
            (8, ["tinker://run/s-2"]),
            (8, ["tinker://run/s-3"]),
        ]
        await engine.load([BASE, version(3)])
        sdk.lost = {0, 1, 2, 3}
        await engine.load([BASE, version(3), version(4)])
        assert sdk.models[4].states == ["tinker://run/s-4"], "that of version 2 was free, and lost"

    run(connect(**{"tinker.sample_from": "models"}), body)


def test_versions_answer_while_another_one_is_loaded(
    connect: Connect, version: Callable[[int], PolicyRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    created, answers, asked = (
        ServiceDouble.create_sampling_client,
        threading.Event(),
        threading.Event(),
    )

    def create_slowly(self: ServiceDouble, **given: Any) -> Any:
        if given.get("model_path") == "tinker://run/v-2":
            asked.set()
            assert answers.wait(240)
        return created(self, **given)

    monkeypatch.setattr(ServiceDouble, "create_sampling_client", create_slowly)

    async def body(engine: EngineClient) -> None:
        await engine.load([BASE, version(1)])
        loading = asyncio.create_task(engine.load([BASE, version(1), version(2)]))
        try:
            assert await asyncio.to_thread(asked.wait, 10)
            for number in (0, 1):
                reply = await asyncio.wait_for(collect(engine, call(version=number)), 300)
                assert reply.finish == "length"
            assert not loading.done()
        finally:
            answers.set()
        await loading
        assert (await collect(engine, call(version=2))).finish == "length"

    run(connect(), body)


@pytest.mark.parametrize("call_name", ["sample", "score", "sampler"])
def test_a_session_that_the_service_ended_is_opened_again(
    connect: Connect, sdk: SdkDouble, call_name: str
) -> None:
    async def body(engine: EngineClient) -> None:
        if call_name != "sampler":
            await collect(engine, call(version=0))
        sdk.failures[call_name] = [StatusError(404, "Sampling session not found")]
        response = np.array((await collect(engine, call(version=0))).token_ids, dtype=np.int32)
        await engine.score(version=0, prompt_ids=PROMPT, response_ids=response, temperature=1.0)
        assert not sdk.failures[call_name]
        assert len(sdk.opened) == 2

    run(connect(), body)


def test_an_answer_without_a_reply_is_one_line(harness: EngineHarness, sdk: SdkDouble) -> None:
    async def body(engine: Engine) -> None:
        sdk.answer = lambda _: SimpleNamespace(sequences=[])
        with pytest.raises(EngineError, match="Tinker returned no reply; expected one"):
            await collect(engine, call())

    harness.run(body)


def test_a_service_that_lost_its_models_says_what_to_set(
    harness: EngineHarness, sdk: SdkDouble
) -> None:
    sdk.failures["sample"] = [ValueError("Error retrieving result: Model model_1 not loaded")] * 2

    async def body(engine: Engine) -> None:
        with pytest.raises(
            EngineGone, match=r"no longer has a model of this session.*sample_from to models"
        ):
            await collect(engine, call(version=1))

    harness.run(body)


def test_a_closed_stream_is_cancelled(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        running = asyncio.create_task(collect(engine, call(max_tokens=500)))
        while await harness.running(engine) == 0:
            await asyncio.sleep(0.001)
        running.cancel()
        while await harness.running(engine):
            await asyncio.sleep(0.001)

    harness.run(body)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"top": 3}, "no alternatives"),
        ({"min_p": 0.1}, "without min_p"),
        ({"presence_penalty": 0.5, "logit_bias": {1: 2.0}}, "without presence_penalty, logit_bias"),
        ({"min_tokens": 3}, "without min_tokens"),
    ],
)
def test_what_the_service_has_not_is_refused_in_one_line(
    harness: EngineHarness, asked: dict[str, Any], words: str
) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(SamplingUnsupported, match=words):
            await collect(engine, call(**asked))
        with pytest.raises(GrammarError, match="no structured output"):
            await collect(engine, call(grammar="start: /a/"))
        with pytest.raises(EngineError, match="temperature 1, not"):
            await engine.score(version=1, prompt_ids=PROMPT, response_ids=PROMPT, temperature=0.7)
        assert (await collect(engine, call())).finish == "length"

    harness.run(body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logprobs": None}, "12 tokens with 0 log-probabilities"),
        ({"logprobs": [0.0, float("nan")] * 6}, "not finite"),
        ({"stop_reason": "stop"}, "ended a reply at token"),
        ({"tokens": []}, "0 tokens with 12"),
    ],
)
def test_a_reply_that_cannot_be_stored_as_sampled_is_an_error(
    harness: EngineHarness, sdk: SdkDouble, change: dict[str, Any], words: str
) -> None:
    def changed(found: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(sequences=[SimpleNamespace(**vars(found.sequences[0]) | change)])

    async def body(engine: Engine) -> None:
        sdk.answer = changed
        with pytest.raises(EngineError, match=words):
            await collect(engine, call())

    harness.run(body)


FAILURES = [
    (StatusError(401, "bad key"), "refused the key .bad key.. Set TINKER_API_KEY"),
    (StatusError(429, "slow down"), "still busy after all retries"),
    (
        StatusError(503, "overloaded"),
        "does not answer .overloaded.. Check the network and tinker.url",
    ),
    (ConnectionRefusedError("no route"), "does not answer .no route.. Check the network"),
    (
        StatusError(400, "prompt exceeds the maximum context length"),
        "too long .*engine.max_context",
    ),
    (StatusError(402, "no credit"), "refused for billing"),
    (StatusError(403, "no access to project p"), "refused the project .*Set TINKER_PROJECT_ID"),
    (
        StatusError(404, "Model tinker://run/sampler_weights/a not found"),
        "no longer has a checkpoint .*rollback 0",
    ),
    (StatusError(404, "Not Found"), "nothing at that address .Not Found.. Check tinker.url"),
    (ValueError("strange\nnews"), "failed .strange news."),
    (
        json.JSONDecodeError("Expecting value", "<html>", 0),
        "its SDK cannot read .*no proxy answers",
    ),
]


@pytest.mark.parametrize(("failure", "words"), FAILURES, ids=lambda value: type(value).__name__)
def test_a_failure_is_one_line_and_serving_goes_on(
    harness: EngineHarness, sdk: SdkDouble, failure: Exception, words: str
) -> None:
    async def body(engine: Engine) -> None:
        sdk.failures = {"sample": [failure], "score": [failure]}
        with pytest.raises(EngineError, match=words) as caught:
            await collect(engine, call())
        assert "\n" not in str(caught.value)
        with pytest.raises(EngineError, match=words):
            await engine.score(version=1, prompt_ids=PROMPT, response_ids=PROMPT, temperature=1.0)
        assert (await collect(engine, call())).finish == "length"

    harness.run(body)


def test_a_call_ends_after_the_timeout(connect: Connect, sdk: SdkDouble) -> None:
    async def body(engine: EngineClient) -> None:
        await engine.load([BASE])
        sdk.hang = True
        with pytest.raises(EngineError, match=r"no answer within 0.2 s \(tinker.call_timeout\)"):
            await collect(engine, call(version=0))
        sdk.hang = False
        assert (await collect(engine, call(version=0))).finish == "length"

    run(connect(**{"tinker.call_timeout": 0.2}), body)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (StatusError(401, "bad key"), "refused the key"),
        (ConnectionRefusedError("no route"), "does not answer"),
    ],
)
def test_a_session_that_cannot_be_opened_is_reported_and_tried_again(
    connect: Connect,
    sdk: SdkDouble,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    words: str,
) -> None:
    monkeypatch.setattr("openclaw_rl.tinker.service.RECONNECT_SECONDS", 0.2)
    sdk.failures = {"connect": [failure]}

    async def body(engine: EngineClient) -> None:
        for _ in range(2):
            with pytest.raises(EngineError, match=words):
                await engine.info()
        assert len(sdk.opened) == 1, "not at every question"
        await asyncio.sleep(0.3)
        assert (await engine.info()).context_length == 512

    run(connect(), body)


def test_a_service_that_hangs_at_the_start_is_reported_after_the_connect_timeout(
    connect: Connect, sdk: SdkDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, answers = type(sdk).ServiceClient, threading.Event()
    monkeypatch.setattr(
        type(sdk),
        "ServiceClient",
        lambda self, **given: answers.wait(240) and opened(self, **given),
    )
    monkeypatch.setattr("openclaw_rl.tinker.service.RECONNECT_SECONDS", 0.0)

    async def body(engine: EngineClient) -> None:
        with pytest.raises(EngineError, match=r"does not answer within 0.1 s"):
            await engine.info()
        answers.set()
        found = None
        async with asyncio.timeout(60):
            while found is None:
                with contextlib.suppress(EngineError):  # a slow machine needs longer than 0.1 s
                    found = await engine.info()
        assert found.model == "org/model"
        assert len(sdk.opened) == 1, "the attempt went on meanwhile"

    run(connect(**{"tinker.connect_timeout": 0.1}), body)


def test_the_session_is_opened_with_address_key_and_project(
    connect: Connect, sdk: SdkDouble
) -> None:
    settings = {
        "tinker.url": "http://tinker:8000",
        "tinker.project_id": "mine",
        "tinker.api_key": "tml-mine",
    }

    async def body(engine: EngineClient) -> None:
        await engine.info()

    run(connect(**settings), body)
    assert sdk.opened == [
        {"base_url": "http://tinker:8000", "api_key": "tml-mine", "project_id": "mine"}
    ]


def test_a_model_that_the_service_lacks_is_named_with_those_it_has(connect: Connect) -> None:
    async def body(engine: EngineClient) -> None:
        with pytest.raises(
            EngineError, match=r"no model 'org/other'. It has: org/model. Set tinker.model"
        ):
            await engine.info()

    run(connect(**{"tinker.model": "org/other"}), body)


@pytest.mark.parametrize("fault", ["model", "capabilities"])
def test_a_session_that_is_of_no_use_sends_no_heartbeats(
    connect: Connect, sdk: SdkDouble, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The engine is asked every second, and each attempt opens a session, whose heartbeats would never end."""
    monkeypatch.setattr("openclaw_rl.tinker.service.RECONNECT_SECONDS", 0.0)
    settings = {"tinker.model": "org/other"} if fault == "model" else {}
    if fault == "capabilities":
        sdk.failures["capabilities"] = [StatusError(401, "bad key")] * 2

    async def body(engine: EngineClient) -> None:
        for _ in range(2):
            with pytest.raises(EngineError, match=r"no model|refused the key"):
                await engine.info()
        async with asyncio.timeout(10):
            while sdk.closed < 2:
                await asyncio.sleep(0.01)
        if fault == "capabilities":
            await engine.info()
            assert sdk.closed == 2, "the one that is used goes on"

    run(connect(**settings), body)


def test_the_context_is_the_least_of_all_that_are_known(connect: Connect, sdk: SdkDouble) -> None:
    async def context(engine: EngineClient) -> int:
        return (await engine.info()).context_length

    assert run(connect(**{"engine.max_context": 100}), context) == 100
    sdk.context = None
    known = run(connect(), context)  # of the starter's own config.json
    sdk.context = known - 1
    assert run(connect(), context) == known - 1


@pytest.mark.parametrize("harm", ["missing", "changed", "another trainer's", "another base"])
def test_a_version_that_the_service_does_not_hold_is_refused(
    harness: EngineHarness, version: Callable[..., PolicyRef], tmp_path: Path, harm: str
) -> None:
    bad, words = (
        version(2),
        {"changed": "it was changed", "another base": "trained on org/other"}.get(harm, "missing"),
    )
    file = Path(str(bad.path)) / "tinker_version.json"
    if harm == "another base":
        bad = version(2, base="org/other")
    elif harm == "changed":
        file.write_text(file.read_text().replace("v-2", "v-3"))
    else:
        file.unlink()
    if harm == "another trainer's":
        digest = write_adapter(tmp_path / "adapter")
        bad, words = (
            PolicyRef(version=2, path=str(tmp_path / "adapter"), digest=digest),
            "weights of another trainer",
        )

    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError, match=words):
            await engine.load([harness.version(1), bad])
        assert (await collect(engine, call(version=1))).finish == "length"

    harness.run(body)
