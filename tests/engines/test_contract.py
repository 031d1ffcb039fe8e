"""What every engine must do: the public double, the real process over its socket, and servers' wires over HTTP.

`tests/external/engines/` runs the same tests against a real vLLM.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.engines.contract_fixtures import EngineHarness

from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import Engine
from openclaw_rl.types import Chunk, Generation, PolicyRef, Sampling

PROMPT = np.arange(1, 9, dtype=np.int32)


def call(
    prompt: np.ndarray = PROMPT,
    *,
    version: int = 1,
    stop: tuple[int, ...] = (),
    top: int = 0,
    **sampling: object,
) -> Generation:
    wanted = {"max_tokens": 12, "seed": 1} | sampling
    return Generation(
        id="g",
        version=version,
        prompt_ids=prompt,
        sampling=Sampling(**wanted),
        stop_token_ids=stop,
        top_logprobs=top,
    )


async def collect(engine: Engine, generation: Generation) -> Chunk:
    """All chunks as one; checks that the finish is there, once, and last."""
    chunks = [chunk async for chunk in engine.generate(generation)]
    assert [c.finish for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish is not None
    return Chunk(
        token_ids=sum((c.token_ids for c in chunks), ()),
        logprobs=sum((c.logprobs for c in chunks), ()),
        top=sum((c.top for c in chunks), ()),
        finish=chunks[-1].finish,
    )


def test_streams_to_the_length_asked(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        await engine.generate(call(max_tokens=1)).__anext__()  # the model is warm
        chunks = [
            c async for c in engine.generate(call(max_tokens=256))
        ]  # a busy machine may read several at once
        tokens = sum(len(c.token_ids) for c in chunks)
        assert (tokens, chunks[-1].finish) == (256, "length")
        assert len(chunks) > 8, "tokens must leave one by one, not at the end"
        assert all(len(c.token_ids) == len(c.logprobs) > 0 for c in chunks)
        assert all(logprob <= 0 for c in chunks for logprob in c.logprobs)

    harness.run(body)


def test_a_reply_may_fill_the_context(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        prompt = np.resize(PROMPT, harness.context - 3).astype(np.int32)
        for asked in (0, 100):  # 0: what remains
            reply = await collect(engine, call(prompt, max_tokens=asked))
            assert (len(reply.token_ids), reply.finish) == (3, "length")

    harness.run(body)


def test_a_prompt_without_room_for_a_reply_is_refused(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError, match=f"{harness.context} tokens"):
            await collect(engine, call(np.resize(PROMPT, harness.context).astype(np.int32)))
        assert (await collect(engine, call())).finish == "length"

    harness.run(body)


def test_stop_ids_end_the_reply_and_belong_to_it(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        whole = await collect(engine, call())
        stop = next(t for t in whole.token_ids[2:] if t not in whole.token_ids[:2])
        end = whole.token_ids.index(stop) + 1
        reply = await collect(engine, call(stop=(999, stop)))
        assert (reply.token_ids, reply.finish) == (whole.token_ids[:end], "stop")
        np.testing.assert_allclose(reply.logprobs, whole.logprobs[:end], atol=harness.tolerance)

    harness.run(body)


def test_a_seed_reproduces_the_reply_whatever_else_runs(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        alone = await collect(engine, call(seed=5, temperature=0.8))
        others = [
            call(PROMPT[: 1 + i % 7], seed=100 + i, version=i % 2, max_tokens=5 + 3 * i)
            for i in range(12)
        ]
        wanted = [call(seed=5, temperature=0.8) for _ in range(3)]
        replies = await asyncio.gather(
            *(collect(engine, g) for g in [*others[:6], *wanted, *others[6:]])
        )
        for reply in replies[6:9]:
            assert reply.token_ids == alone.token_ids
            np.testing.assert_allclose(reply.logprobs, alone.logprobs, atol=harness.tolerance)

    harness.run(body)


def test_alternatives_are_as_many_as_asked(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        reply = await collect(engine, call(top=3, temperature=0.0))
        assert [len(t) for t in reply.top] == [3] * len(reply.token_ids)
        for token, logprob, top in zip(reply.token_ids, reply.logprobs, reply.top, strict=True):
            assert top[0] == pytest.approx((token, logprob), abs=harness.tolerance)
        assert (await collect(engine, call())).top == ()

    harness.run(body)


def test_scores_are_what_generation_reports(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        for version, temperature in ((0, 1.0), (1, 0.7)):
            generation = call(version=version, temperature=temperature, max_tokens=40)
            reply = await collect(engine, generation)
            ids = np.array(reply.token_ids, dtype=np.int32)
            scores = await engine.score(
                version=version, prompt_ids=PROMPT, response_ids=ids, temperature=temperature
            )
            assert scores.dtype == np.float32
            np.testing.assert_allclose(scores, reply.logprobs, atol=harness.tolerance)

    harness.run(body)


def test_an_unknown_version_is_refused(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError, match="version 7 is not loaded"):
            await collect(engine, call(version=7))
        with pytest.raises(EngineError, match="version 7 is not loaded"):
            await engine.score(version=7, prompt_ids=PROMPT, response_ids=PROMPT, temperature=1.0)

    harness.run(body)


def test_closing_a_stream_frees_its_place(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        stream = engine.generate(call(max_tokens=500))
        await stream.__anext__()
        assert await harness.running(engine) == 1
        await stream.aclose()  # type: ignore[attr-defined]
        for _ in range(100):
            if await harness.running(engine) == 0:
                break
            await asyncio.sleep(0.01)
        assert await harness.running(engine) == 0

    harness.run(body)


def test_a_reply_ends_on_its_version_while_others_are_loaded_and_unloaded(
    harness: EngineHarness,
) -> None:
    async def body(engine: Engine) -> None:
        alone = await collect(engine, call(max_tokens=200))
        running = engine.generate(call(max_tokens=200))
        first = await running.__anext__()
        await engine.load([harness.version(n) for n in (2, 3, 4)])
        with pytest.raises(EngineError, match="version 1 is not loaded"):
            await collect(engine, call(version=1))
        assert (await collect(engine, call(version=4))).finish == "length"
        with pytest.raises(EngineError, match="still answering"):
            await engine.load([harness.version(n) for n in (2, 3, 4, 5)])
        rest = [chunk async for chunk in running]
        assert sum((c.token_ids for c in [first, *rest]), ()) == alone.token_ids
        await engine.load(
            [harness.version(n) for n in (2, 3, 4, 5)]
        )  # its place was freed when it ended
        assert (await collect(engine, call(version=5))).finish == "length"

    harness.run(body)


def test_more_versions_than_fit_are_refused_and_nothing_changes(harness: EngineHarness) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError):
            await engine.load([harness.version(n) for n in range(1, 6)])
        assert (await collect(engine, call(version=1))).finish == "length"
        with pytest.raises(EngineError):
            await collect(engine, call(version=2))

    harness.run(body)


@pytest.mark.parametrize("harm", ["missing", "changed", "no such folder"])
def test_a_bad_adapter_is_refused_and_nothing_changes(
    harness: EngineHarness, tmp_path: Path, harm: str
) -> None:
    assert harness.adapter.path is not None
    bad = tmp_path / "bad"
    bad.mkdir()
    for file in Path(harness.adapter.path).glob("adapter_*"):
        (bad / file.name).write_bytes(file.read_bytes())
    if harm == "missing":
        (bad / "adapter_model.safetensors").unlink()
    elif harm == "changed":
        raw = bytearray((bad / "adapter_model.safetensors").read_bytes())
        raw[-1] ^= 1
        (bad / "adapter_model.safetensors").write_bytes(raw)
    path = tmp_path / "nowhere" if harm == "no such folder" else bad

    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError, match="digest" if harm == "changed" else "adapter_"):
            await engine.load(
                [
                    harness.version(1),
                    PolicyRef(version=2, path=str(path), digest=harness.adapter.digest),
                ]
            )
        assert (await collect(engine, call(version=1))).finish == "length"

    harness.run(body)
