"""Versions come and go under load, and every reply is to the last digit that of its own version."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
from tests.engines.contract_fixtures import BASE, EngineHarness
from tests.engines.test_contract import call, collect
from tests.external.engines.conftest import Reference, chosen

from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import Engine
from openclaw_rl.types import Chunk, Generation, PolicyRef

STREAMS = 16


def _asked(n: int, version: int, tokens: int = 60) -> Generation:
    prompt = ((np.arange(1, 6 + n % 9) * (n + 3)) % 1500).astype(np.int32)
    return call(prompt, version=version, seed=n, temperature=0.9, max_tokens=tokens)


def _check(reference: Reference, version: int, asked: Generation, reply: Chunk) -> None:
    logits = reference(version, asked.prompt_ids.tolist(), reply.token_ids)
    expected = chosen(logits, reply.token_ids, asked.sampling.temperature)
    np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4, err_msg=f"version {version}")


def test_sixteen_streams_while_versions_come_and_go(
    harness: EngineHarness, refs: dict[int, PolicyRef], reference: Reference
) -> None:
    async def body(engine: Engine) -> None:
        await engine.load([BASE, refs[1]])
        held, done, stop = [0, 1], [], asyncio.Event()

        async def user(n: int) -> None:
            count = 0
            while not stop.is_set():
                version = held[(n + count) % len(held)]
                asked = _asked(100 * n + count, version)
                done.append((version, asked, await collect(engine, asked)))
                count += 1

        users = [asyncio.create_task(user(n)) for n in range(STREAMS)]
        for wanted in ([0, 1, 2], [0, 2, 3], [0, 3], [0, 1, 3], [0, 1]):
            while True:
                held[:] = [
                    v for v in held if v in wanted
                ]  # as the gateway: what is let go takes no more
                with contextlib.suppress(EngineError):  # at the cap, until a reply has ended
                    await engine.load([refs[v] for v in wanted])
                    break
                await asyncio.sleep(0.05)
            held[:] = wanted
            before = len(done)
            while not set(wanted) <= {version for version, _, _ in done[before:]}:
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*users)
        assert {v for v, _, _ in done} == {0, 1, 2, 3}
        assert len(done) >= 2 * STREAMS
        for version, asked, reply in done:
            _check(reference, version, asked, reply)

    harness.run(body)
