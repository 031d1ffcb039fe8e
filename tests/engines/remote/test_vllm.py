"""The vLLM client beyond the contract: losing the server, draining, full weights, and what is not taken on trust."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from tests.engines.contract_fixtures import BASE, closing
from tests.engines.vllm_server import VllmDouble

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines import registry
from openclaw_rl.engines.base import wait_until_ready
from openclaw_rl.engines.remote import vllm_launch
from openclaw_rl.engines.remote.http_client import HttpClient, error_message
from openclaw_rl.engines.remote.loaded_versions import owner_of
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.errors import ConfigError, EngineError, EngineFull, EngineGone, GrammarError
from openclaw_rl.settings.load import EngineConfig, from_flat
from openclaw_rl.testing import ScriptedEngine, write_adapter
from openclaw_rl.types import Chunk, Generation, PolicyRef, Sampling

PROMPT = np.arange(1, 5, dtype=np.int32)


def call(version: int = 0, tokens: int = 4, **sampling: object) -> Generation:
    made = Sampling(**({"max_tokens": tokens} | sampling))  # type: ignore[arg-type]
    return Generation(id="g", version=version, prompt_ids=PROMPT, sampling=made, stop_token_ids=())


async def whole(engine: VllmEngine, generation: Generation) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(generation)]


async def reply_to(engine: VllmEngine, generation: Generation) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities of a reply: a busy machine sends several tokens in one chunk."""
    chunks = await whole(engine, generation)
    return [id_ for c in chunks for id_ in c.token_ids], [
        value for c in chunks for value in c.logprobs
    ]


async def drain(stream: AsyncIterator[Chunk]) -> None:
    async for _ in stream:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Run a body with a client of the double, which is closed at the end."""

    def go(
        double: VllmDouble, body: Callable[[VllmEngine], Awaitable[None]], **settings: object
    ) -> None:
        async def main() -> None:
            config = EngineConfig(backend="vllm", **settings)  # type: ignore[arg-type]
            engine = VllmEngine(double.http(), config, folder=tmp_path / "identity")
            async with closing(engine):
                await body(engine)

        asyncio.run(asyncio.wait_for(main(), 300))

    return go


@pytest.fixture
def adapters(tmp_path: Path) -> dict[int, PolicyRef]:
    out = {0: BASE}
    for version in (1, 2, 3):
        folder = tmp_path / f"v{version}"
        digest = write_adapter(folder, weight=float(version))
        out[version] = PolicyRef(version=version, path=str(folder), digest=digest)
    return out


@pytest.fixture
def full(tmp_path: Path) -> dict[int, PolicyRef]:
    """Versions with full weights."""
    out = {}
    for version in (7, 8):
        folder = tmp_path / f"full{version}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes([version]) * 9)
        out[version] = PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))
    return out


def test_a_lost_server_breaks_its_streams_and_is_found_again(
    vllm_double: VllmDouble, tmp_path: Path, adapters: dict[int, PolicyRef]
) -> None:
    vllm_double.engine.delay = 0.01
    epochs: list[int] = []

    async def main() -> None:
        config = EngineConfig(backend="vllm")
        made = VllmEngine(vllm_double.http(), config, folder=tmp_path, on_connect=epochs.append)
        async with closing(made) as engine:
            assert not engine.connected
            await engine.load([BASE, adapters[1]])
            assert (engine.connected, engine.epoch, epochs) == (True, 1, [1])
            streams = [engine.generate(call(version, 400)) for version in (0, 1)]
            for stream in streams:
                await stream.__anext__()
            await asyncio.to_thread(vllm_double.__exit__, None, None, None)
            for stream in streams:
                with pytest.raises(EngineGone, match="is incomplete"):
                    await drain(stream)
            with pytest.raises(EngineGone, match="no engine answers"):
                await engine.load([BASE])
            with pytest.raises(EngineGone, match=r"not ready within 0\.2 s"):
                await engine.wait_ready(0.2)
            vllm_double.adapters.clear()
            vllm_double.__enter__()
            info = await engine.wait_ready(10)
            assert (info.versions, epochs) == ((0,), [1, 2])
            with pytest.raises(EngineError, match="version 1 is not loaded"):
                await whole(engine, call(1))
            await engine.load([adapters[1]])
            assert len((await reply_to(engine, call(1)))[0]) == 4
        with pytest.raises(EngineGone, match="closed"):
            await engine.info()

    asyncio.run(asyncio.wait_for(main(), 300))


def test_names_are_new_for_each_content_and_are_unloaded_when_drained(
    vllm_double: VllmDouble, run: Callable[..., None], adapters: dict[int, PolicyRef]
) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.load([BASE, adapters[1]])
        names = set(vllm_double.adapters)
        assert {n[:10] for n in names} == {"openclaw-0", "openclaw-1"}, (
            "the base is an adapter that changes nothing"
        )
        long = engine.generate(call(1, 60))
        await long.__anext__()
        await engine.load([BASE, adapters[2]])
        assert names < set(vllm_double.adapters), "version 1 still answers"
        assert [c async for c in long][-1].finish == "length"
        for _ in range(200):
            if not any(n.startswith("openclaw-1-") for n in vllm_double.adapters):
                break
            await asyncio.sleep(0.01)
        assert {n[:10] for n in vllm_double.adapters} == {"openclaw-0", "openclaw-2"}
        changed = PolicyRef(version=2, path=adapters[3].path, digest=adapters[3].digest)
        await engine.load([BASE, changed])
        loads = [
            b["lora_name"] for path, b in vllm_double.requests if path == "/v1/load_lora_adapter"
        ]
        assert len(set(loads)) == len(loads) == 4
        assert not any(b.get("load_inplace") for _, b in vllm_double.requests if b)

    run(vllm_double, body)


def test_an_adapter_that_another_client_unloaded_is_loaded_again_for_the_request(
    vllm_double: VllmDouble, run: Callable[..., None], adapters: dict[int, PolicyRef]
) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.load([adapters[0], adapters[1]])
        expected = await reply_to(engine, call(1, temperature=0.0))
        scored = await engine.score(
            version=1, prompt_ids=PROMPT, response_ids=PROMPT, temperature=1.0
        )
        for _ in range(2):
            vllm_double.adapters.clear()
            assert await reply_to(engine, call(1, temperature=0.0)) == expected
            vllm_double.adapters.clear()
            again = await engine.score(
                version=1, prompt_ids=PROMPT, response_ids=PROMPT, temperature=1.0
            )
            assert again.tolist() == scored.tolist()
        assert engine.epoch == 1

    run(vllm_double, body, max_loaded_versions=3)


def test_gateways_that_share_a_server_leave_each_others_adapters(
    vllm_double: VllmDouble, tmp_path: Path, adapters: dict[int, PolicyRef]
) -> None:
    async def main() -> None:
        first, second = (
            VllmEngine(
                vllm_double.http(), EngineConfig(backend="vllm"), folder=tmp_path / who, owner=who
            )
            for who in (owner_of(tmp_path / "a"), owner_of(tmp_path / "b"))
        )
        async with closing(first) as one, closing(second) as two:
            await one.load([adapters[0], adapters[1]])
            await two.load([adapters[0], adapters[1]])
            assert len(vllm_double.adapters) == 4
            mine = {name for name in vllm_double.adapters if name.endswith(one.owner)}
            await two.load([adapters[0], adapters[2]])
            while len(vllm_double.adapters) > 4:
                await asyncio.sleep(0.01)
            assert mine <= vllm_double.adapters.keys()

    asyncio.run(asyncio.wait_for(main(), 300))


def test_the_base_never_runs_beside_adapters_without_one(
    vllm_double: VllmDouble, run: Callable[..., None], adapters: dict[int, PolicyRef]
) -> None:
    """vLLM's CPU build would give such rows the adapter of its last slot, once that is taken."""

    async def body(engine: VllmEngine) -> None:
        early = engine.generate(call(0, 400))
        await early.__anext__()
        await engine.load([BASE, adapters[1]])
        with pytest.raises(EngineFull, match="still running"):
            await engine.load([BASE, adapters[1], adapters[2]])
        await whole(engine, call(0))
        asked = [b["model"] for path, b in vllm_double.requests if path == "/v1/completions"]
        assert asked[-1].startswith("openclaw-0-")
        await early.aclose()  # type: ignore[attr-defined]
        await engine.load([BASE, adapters[1], adapters[2]])

    run(vllm_double, body, max_loaded_versions=3)


def test_with_a_gpu_adapters_are_loaded_beside_a_long_reply_on_the_base(
    vllm_double: VllmDouble, run: Callable[..., None], adapters: dict[int, PolicyRef]
) -> None:
    async def body(engine: VllmEngine) -> None:
        early = engine.generate(call(0, 400))
        await early.__anext__()
        await engine.load([BASE, adapters[1], adapters[2]])
        await early.aclose()  # type: ignore[attr-defined]

    vllm_double.device = "cuda"
    run(vllm_double, body, max_loaded_versions=3)


def test_full_weights_are_changed_between_replies_and_the_base_comes_back(
    vllm_double: VllmDouble,
    run: Callable[..., None],
    full: dict[int, PolicyRef],
    adapters: dict[int, PolicyRef],
) -> None:
    """The double asserts that nothing runs while weights change."""

    async def body(engine: VllmEngine) -> None:
        await engine.load([BASE, adapters[1], full[7], full[8]])
        versions = [0, 7, 8, 1, 7, 0, 8]
        slow = engine.generate(call(0, 50))
        first = await slow.__anext__()  # its reader stops here: nobody waits for it
        replies = await asyncio.gather(*(whole(engine, call(v, 6)) for v in versions))
        assert [sum(len(c.token_ids) for c in r) for r in replies] == [6] * len(versions)
        paths = [
            b["kwargs"].get("weights_path")
            for p, b in vllm_double.requests
            if p == "/collective_rpc"
        ]
        assert paths == [full[7].path, full[8].path, "/base"], (
            "one change for all that wait for the same"
        )
        steps = [
            p for p, _ in vllm_double.requests if not p.startswith("/v1") and p != "/tokenize"
        ][:5]
        assert steps == [
            "/pause",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
            "/resume",
        ]
        assert vllm_double.weights == "base"
        assert len(first.token_ids) + sum([len(c.token_ids) async for c in slow]) == 50

    run(vllm_double, body)


def test_weights_that_do_not_load_fail_only_those_who_asked(
    vllm_double: VllmDouble, run: Callable[..., None], full: dict[int, PolicyRef]
) -> None:
    async def body(engine: VllmEngine) -> None:
        assert full[7].path is not None
        vllm_double.refused_weights.add(full[7].path)
        await engine.load([BASE, full[7], full[8]])
        results = await asyncio.gather(
            *(reply_to(engine, call(v)) for v in (7, 8, 0)), return_exceptions=True
        )
        assert isinstance(results[0], EngineError)
        assert "cannot load the weights" in str(results[0])
        assert [len(r[0]) for r in results[1:]] == [4, 4]  # type: ignore[index]
        assert vllm_double.loaded == "/base", "half-changed weights are loaded anew"
        changed = PolicyRef(version=8, path=full[8].path, digest="0" * 64)
        with pytest.raises(EngineError, match="digest"):
            await engine.load([BASE, changed])

    run(vllm_double, body)


def test_a_server_that_was_left_with_other_weights_is_noticed(
    vllm_double: VllmDouble, run: Callable[..., None]
) -> None:
    async def body(engine: VllmEngine) -> None:
        vllm_double.weights, vllm_double.loaded = "openclaw-7-0123abcd", "/some/full/weights"
        await whole(engine, call(0))
        assert (vllm_double.weights, vllm_double.loaded) == ("base", "/base")

    run(vllm_double, body)


def test_the_convention_is_checked_at_the_first_call(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    engine = ScriptedEngine(lambda prompt, version: [5])

    async def refused(engine: VllmEngine) -> None:
        with pytest.raises(
            EngineError,
            match=r"returns raw .*--logprobs-mode processed_logprobs.*engine.logprob_convention to raw",
        ):
            await engine.load([BASE])
        assert not engine.connected

    async def taken(engine: VllmEngine) -> None:
        await engine.load([BASE])
        with pytest.raises(EngineError, match=r"scores at temperature 1, not 0\.5"):
            await engine.score(version=0, prompt_ids=PROMPT, response_ids=PROMPT, temperature=0.5)
        scores = await engine.score(
            version=0, prompt_ids=PROMPT, response_ids=PROMPT, temperature=1.0
        )
        np.testing.assert_allclose(
            scores, [ScriptedEngine.token_logprob(int(i), 0) for i in PROMPT]
        )

    with VllmDouble(tmp_path / "raw.sock", engine, mode="raw") as double:
        run(double, refused)
        run(double, taken, logprob_convention="raw")


def test_replies_are_scored_position_by_position(
    vllm_double: VllmDouble, run: Callable[..., None]
) -> None:
    async def body(engine: VllmEngine) -> None:
        scores = await engine.score(
            version=0, prompt_ids=PROMPT, response_ids=PROMPT, temperature=0.5
        )
        np.testing.assert_allclose(
            scores, [ScriptedEngine.token_logprob(int(i), 0, 0.5) for i in PROMPT], rtol=1e-6
        )
        asked = [b["prompt"] for p, b in vllm_double.requests if b and "logprob_token_ids" in b]
        assert sorted(map(len, asked)) == [4, 5, 6, 7]

    run(vllm_double, body)


def test_cached_prompt_tokens_are_reported_once(
    vllm_double: VllmDouble, run: Callable[..., None]
) -> None:
    async def body(engine: VllmEngine) -> None:
        chunks = await whole(engine, call(0))
        assert sum(c.cached for c in chunks) == len(PROMPT) - 1

    run(vllm_double, body)


def test_a_grammar_is_passed_on(vllm_double: VllmDouble, run: Callable[..., None]) -> None:
    async def body(engine: VllmEngine) -> None:
        assert (await engine.info()).grammar
        await whole(engine, call(0, grammar='start: "1"'))
        assert vllm_double.requests[-1][1]["structured_outputs"] == {"grammar": 'start: "1"'}
        bounded = 'start: %json {"type": "object", "x-guidance": {"whitespace_pattern": "( |\\\\n[ ]{0,16})?"}} "</a>"'
        await whole(engine, call(0, grammar=bounded))
        sent = vllm_double.requests[-1][1]["structured_outputs"]["grammar"]
        assert sent.endswith('"key_separator": ":[ ]?"}} "</a>"'), "as older versions understand it"

    run(vllm_double, body)


def test_a_refused_grammar_has_an_error_of_its_own(
    vllm_double: VllmDouble, run: Callable[..., None]
) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.info()
        vllm_double.engine.refuse = "Grammar error: failed to compile JSON schema"
        with pytest.raises(GrammarError, match="failed to compile"):
            await whole(engine, call(0, grammar="start: nowhere"))
        with pytest.raises(EngineError, match="failed to compile") as refused:
            await whole(engine, call(0))
        assert not isinstance(refused.value, GrammarError)

    run(vllm_double, body)


def test_other_servers_and_wrong_keys_are_explained(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer right":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "gpt"}]})

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        for key, words in (("wrong", "OPENCLAW_ENGINE_API_KEY"), ("right", "max_model_len")):
            http = HttpClient(f"http://127.0.0.1:{port}", api_key=key)
            async with closing(
                VllmEngine(http, EngineConfig(backend="vllm"), folder=tmp_path)
            ) as engine:
                with pytest.raises(EngineError, match=words):
                    await engine.info()
        await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_with_the_path_of_openai_clients(end: str) -> None:
    assert HttpClient(f"http://127.0.0.1:8001{end}").url == "http://127.0.0.1:8001"


def test_a_server_that_never_answers_ends_with_a_timeout_error() -> None:
    async def main() -> None:
        with pytest.raises(EngineGone, match=r"not ready within 0\.05 s: no answer"):
            await wait_until_ready(lambda: asyncio.Event().wait(), 0.05, (0.01, 0.01))  # type: ignore[arg-type,return-value]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b'["odd"]', '["odd"]'),
        (b"", ""),
    ],
)
def test_error_bodies_of_all_shapes_are_read(raw: bytes, words: str) -> None:
    assert error_message(raw) == words


def test_the_program_is_started_as_the_settings_say(tmp_path: Path) -> None:
    flat = {
        "home": str(tmp_path),
        "engine.backend": "vllm",
        "engine.python": "/env/bin/python",
        "engine.args": ["--tensor-parallel-size", "2"],
        "engine.max_context": 4096,
        "train.lora.rank": 24,
        "model.device": "cuda:3",
    }
    config = from_flat(flat)
    command = vllm_launch.server_command(config)
    assert command[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    given = dict(zip(command[3::2], command[4::2], strict=False))
    assert given["--uds"] == str(config.engine_socket)
    assert given["--logprobs-mode"] == "processed_logprobs"
    assert given["--generation-config"] == "vllm"
    assert given["--max-lora-rank"] == "32"
    assert given["--dtype"] == "float32", "the starter's weights are float32, and the trainer's are"
    assert int(given["--max-loras"]) == config.engine.max_loaded_versions + 1
    assert command[-2:] == ["--tensor-parallel-size", "2"]
    environment = vllm_launch.server_environment(config)
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert not any(name.startswith("OPENCLAW") for name in environment)
    with pytest.raises(EngineError, match="ranks up to 512"):
        vllm_launch.server_command(from_flat(flat | {"train.lora.rank": 600}))


def test_an_engine_that_cannot_start_is_reported_before_anything_starts(tmp_path: Path) -> None:
    def check(**engine: object) -> None:
        flat = {f"engine.{key}": value for key, value in engine.items()}
        registry.check_engine(from_flat({"home": str(tmp_path), "engine.backend": "vllm"} | flat))

    check(url="http://127.0.0.1:1")
    with pytest.raises(EngineError, match="cannot be run"):
        check(python=str(tmp_path / "nowhere"))
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 3\n")
    bare.chmod(0o700)
    with pytest.raises(EngineError, match="vllm is not installed for"):
        check(python=str(bare))
    bare.write_text("#!/bin/sh\nexit 0\n")
    check(python=str(bare))
    with pytest.raises(EngineError, match="vLLM supports processed or raw"):
        check(python=str(bare), logprob_convention="scaled")
    with pytest.raises(ConfigError, match=r"engine\.url"):
        from_flat({"engine.url": "http://127.0.0.1:1"})


def test_a_server_that_answers_and_sends_no_token_ends_its_replies(
    vllm_double: VllmDouble, run: Callable[..., None]
) -> None:
    """Its health path is fine; the process that generates hangs. A slow reader is no hang."""

    async def body(engine: VllmEngine) -> None:
        engine.max_silence = 1.0
        vllm_double.engine.delay = 0.02
        await engine.load([BASE])
        stream = engine.generate(call(tokens=2000))
        await anext(stream)
        await asyncio.sleep(3)
        await anext(stream)
        assert engine.connected, "only the reader was slow"
        vllm_double.engine.delay = 60.0
        with pytest.raises(EngineGone):
            await asyncio.wait_for(drain(stream), 300)
        vllm_double.engine.delay = 0.0

    run(vllm_double, body)
