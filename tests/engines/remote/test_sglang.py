"""The SGLang client beyond the contract: what it scores, its versions and weights, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.engines.contract_fixtures import closing
from tests.engines.sglang_server import SglangWire

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.doctor import random_adapter
from openclaw_rl.engines.remote.http_client import SGLANG_HEALTH, HttpClient
from openclaw_rl.engines.remote.sglang import SglangEngine, check_version
from openclaw_rl.errors import EngineError, GrammarError
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Generation, PolicyRef, Sampling

PROMPT = np.arange(1, 9, dtype=np.int32)
BASE = PolicyRef(version=0, path=None, digest="")
Body = Callable[[SglangEngine], Awaitable[None]]


def call(version: int = 0, *, stop: tuple[int, ...] = (), **sampling: Any) -> Generation:
    wanted = Sampling(**({"max_tokens": 8, "seed": 1} | sampling))
    return Generation(
        id="g", version=version, prompt_ids=PROMPT, sampling=wanted, stop_token_ids=stop
    )


async def reply(
    engine: SglangEngine, generation: Generation
) -> tuple[list[int], list[float], str | None]:
    chunks = [chunk async for chunk in engine.generate(generation)]
    ids = [i for c in chunks for i in c.token_ids]
    return ids, [lp for c in chunks for lp in c.logprobs], chunks[-1].finish


def run(
    url: str, body: Body, *, key: str | None = None, base: str = "/base", **engine: Any
) -> None:
    async def whole() -> None:
        settings = EngineConfig(backend="sglang", **engine)
        async with closing(
            SglangEngine(HttpClient(url, SGLANG_HEALTH, api_key=key), settings, base)
        ) as made:
            await body(made)

    asyncio.run(asyncio.wait_for(whole(), 300))


@pytest.fixture(scope="module")
def wire(model_folder: Path) -> Iterator[SglangWire]:
    with SglangWire(model_folder, mode="incremental") as made:
        yield made


@pytest.fixture
def fresh(model_folder: Path) -> Iterator[Callable[..., SglangWire]]:
    """Servers for tests that change one."""
    started: list[SglangWire] = []

    def make(**settings: Any) -> SglangWire:
        started.append(SglangWire(model_folder, **settings).__enter__())
        return started[-1]

    yield make
    for each in started:
        each.__exit__(None, None, None)


def test_ids_and_logprobs_are_the_models_own(
    wire: SglangWire, refs: dict[int, PolicyRef], reference: Callable[..., np.ndarray]
) -> None:
    async def body(engine: SglangEngine) -> None:
        await engine.load([BASE, refs[1]])
        for version, temperature in ((0, 1.0), (1, 0.7)):
            ids, logprobs, _ = await reply(
                engine, call(version, temperature=temperature, max_tokens=30)
            )
            np.testing.assert_allclose(
                logprobs, reference(version, PROMPT, ids, temperature), atol=1e-4
            )

    run(wire.url, body)


def test_replies_are_scored_position_by_position(
    wire: SglangWire, reference: Callable[..., np.ndarray]
) -> None:
    response = np.array(
        [63, 3, 63, 7], dtype=np.int32
    )  # 63 is the vocabulary's last: SGLang tells it as 0

    async def body(engine: SglangEngine) -> None:
        for temperature in (1.0, 0.6):
            scores = await engine.score(
                version=0, prompt_ids=PROMPT, response_ids=response, temperature=temperature
            )
            np.testing.assert_allclose(
                scores, reference(0, PROMPT, response, temperature), atol=1e-4
            )

    run(wire.url, body)


def test_the_models_end_ends_a_reply_with_stop_ids_and_only_such(
    fresh: Callable[..., SglangWire],
) -> None:
    plain = fresh()
    seen: list[int] = []

    async def body(engine: SglangEngine) -> None:
        seen[:], _, finish = await reply(engine, call())
        assert finish == "length"

    run(plain.url, body)
    ending = fresh(eos=seen[3])

    async def again(engine: SglangEngine) -> None:
        assert (await reply(engine, call()))[0] == seen  # none of ours: it does not end
        ids, _, finish = await reply(engine, call(stop=(999,)))
        assert (ids, finish) == (seen[: seen.index(seen[3]) + 1], "stop")

    run(ending.url, again)


def test_a_cancelled_reply_is_aborted_under_its_own_name(wire: SglangWire) -> None:
    async def body(engine: SglangEngine) -> None:
        stream = engine.generate(call(max_tokens=400))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        rid = next(b["rid"] for b in reversed(wire.asked("/generate")) if b.get("stream"))
        for _ in range(200):
            if {"rid": rid} in wire.asked("/abort_request"):
                break
            await asyncio.sleep(0.01)
        assert {"rid": rid} in wire.asked("/abort_request")
        await reply(engine, call())
        ended = wire.asked("/generate")[-1]["rid"]
        assert {"rid": ended} not in wire.asked("/abort_request")

    run(wire.url, body)


def test_adapters_are_named_by_content_and_unloaded_when_unused(
    fresh: Callable[..., SglangWire], refs: dict[int, PolicyRef], model_folder: Path, tmp_path: Path
) -> None:
    wire = fresh()
    other = random_adapter.write_random_adapter(model_folder, tmp_path / "2", version=2, rank=4)
    assert other is not None
    name = f"openclaw-1-{refs[1].digest[:16]}"

    async def body(engine: SglangEngine) -> None:
        await engine.load([refs[1]])
        assert list(wire.adapters) == [name]
        await engine.load([BASE])
        for _ in range(200):
            if not wire.adapters:
                break
            await asyncio.sleep(0.01)
        assert wire.asked("/unload_lora_adapter") == [{"lora_name": name}]
        await engine.load([refs[1]])

    run(wire.url, body)

    async def later(engine: SglangEngine) -> None:
        await engine.load([refs[1], other])  # the first is still there from before
        assert (await reply(engine, call(1)))[2] == "length"
        assert (await engine.info()).versions == (1, 2)

    run(wire.url, later)


@pytest.mark.parametrize(
    ("number", "words"), [(2, "rank_pattern"), (3, "use_rslora and alpha_pattern")]
)
def test_adapter_settings_that_sglang_ignores_are_refused(
    wire: SglangWire, refs: dict[int, PolicyRef], number: int, words: str
) -> None:
    async def body(engine: SglangEngine) -> None:
        with pytest.raises(EngineError, match=f"version {number}: SGLang ignores {words}"):
            await engine.load([BASE, refs[number]])
        assert (await reply(engine, call()))[2] == "length"

    run(wire.url, body)


def test_a_server_without_lora_gets_an_error_with_the_cure(
    fresh: Callable[..., SglangWire], refs: dict[int, PolicyRef]
) -> None:
    async def body(engine: SglangEngine) -> None:
        with pytest.raises(
            EngineError,
            match=r"version 1: SGLang cannot load .*--enable-lora.*--lora-target-modules",
        ):
            await engine.load([refs[1]])
        assert (await reply(engine, call()))[2] == "length"

    run(fresh(lora=False).url, body)


def test_full_weights_change_only_when_nobody_answers_and_survive_a_new_client(
    fresh: Callable[..., SglangWire],
    model_folder: Path,
    tmp_path: Path,
    reference: Callable[..., np.ndarray],
) -> None:
    import torch
    from transformers import Qwen3ForCausalLM

    tuned = Qwen3ForCausalLM.from_pretrained(model_folder)
    with torch.no_grad():
        tuned.model.norm.weight.mul_(1.5)
    tuned.save_pretrained(tmp_path / "full")
    full = PolicyRef(
        version=1, path=str(tmp_path / "full"), digest=digest_of_folder(tmp_path / "full")
    )
    wire = fresh()

    async def body(engine: SglangEngine) -> None:
        await engine.load([BASE, full])
        before, after, back = await asyncio.gather(
            *(reply(engine, call(v, seed=None, max_tokens=40)) for v in (0, 1, 0))
        )
        for ids, logprobs, _ in (before, back):
            np.testing.assert_allclose(logprobs, reference(0, PROMPT, ids, 1.0), atol=1e-4)
        assert np.abs(np.array(after[1]) - reference(0, PROMPT, after[0], 1.0)).max() > 0.1
        await reply(engine, call(1))

    run(wire.url, body, base=str(model_folder))
    assert wire.weight_version == f"openclaw-1-{full.digest[:16]}"
    changes = len(wire.asked("/update_weights_from_disk"))

    async def later(engine: SglangEngine) -> None:
        await engine.load([BASE, full])
        await reply(engine, call(1))
        assert len(wire.asked("/update_weights_from_disk")) == changes  # they were there
        (tmp_path / "full" / "config.json").unlink()
        ids, logprobs, _ = await reply(engine, call(0))
        np.testing.assert_allclose(logprobs, reference(0, PROMPT, ids, 1.0), atol=1e-4)
        with pytest.raises(EngineError, match="SGLang cannot load the weights"):
            await reply(engine, call(1))
        assert (await reply(engine, call(0)))[2] == "length"

    run(wire.url, later, base=str(model_folder))
    assert wire.weight_version == "default"


def test_the_capabilities_of_the_server_are_queried(fresh: Callable[..., SglangWire]) -> None:
    wire = fresh(grammar="llguidance")

    async def body(engine: SglangEngine) -> None:
        info = await engine.info()
        assert (info.grammar, info.context_length, info.device) == (True, 505, "cpu")
        with pytest.raises(GrammarError, match="Failed to compile ebnf grammar"):
            await reply(engine, call(grammar="start: /a/"))
        before = wire.hits["/model_info"]
        await engine.info()
        assert wire.hits["/health"] == 0, "it generates a token each time"
        assert wire.hits["/model_info"] > before

    run(wire.url, body)

    async def other(engine: SglangEngine) -> None:
        assert not (await engine.info()).grammar

    run(fresh(grammar="xgrammar").url, other)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"version": "0.5.8.post1"},
            r"is 0\.5\.8\.post1; expected 0\.5\.9 or newer.*--backend vllm",
        ),
        ({"version": ""}, r"of unknown version; expected 0\.5\.9"),
        ({"allow_auto_truncate": True}, "--allow-auto-truncate"),
        ({"max_req_input_len": None}, "does not report max_req_input_len"),
    ],
)
def test_a_server_that_cannot_serve_exactly_is_refused(
    fresh: Callable[..., SglangWire], settings: dict[str, Any], words: str
) -> None:
    wire = fresh()
    wire.settings |= settings

    async def body(engine: SglangEngine) -> None:
        with pytest.raises(EngineError, match=words):
            await engine.info()

    run(wire.url, body)


def test_a_wrong_key_is_reported(fresh: Callable[..., SglangWire]) -> None:
    async def body(engine: SglangEngine) -> None:
        with pytest.raises(EngineError, match=r"engine\.api_key"):
            await engine.info()

    run(fresh(key="right").url, body, key="wrong")


def test_a_server_that_is_not_sglang_is_recognised() -> None:
    async def whole() -> None:
        runner = web.AppRunner(web.Application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = HttpClient(f"http://127.0.0.1:{runner.addresses[0][1]}", SGLANG_HEALTH)
        async with closing(SglangEngine(server, EngineConfig(backend="sglang"), "/base")) as engine:
            with pytest.raises(
                EngineError, match="is not an SGLang server, or one that is too old"
            ):
                await engine.info()
        await runner.cleanup()

    asyncio.run(whole())


@pytest.mark.parametrize("version", ["0.5.9", "0.5.9.post1", "0.5.23+cu130", "0.6.0rc1", "1.0"])
def test_supported_versions_are_accepted(version: str) -> None:
    check_version(version, "it")


@pytest.mark.parametrize("version", ["0.5.8", "0.4.10.post2", "", "main"])
def test_unsupported_versions_are_refused(version: str) -> None:
    with pytest.raises(EngineError, match="--backend vllm"):
        check_version(version, "it")
