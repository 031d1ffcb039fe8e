"""Troubles between us and SkyRL's server: retries end them, and what does not end is reported in one line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmarks.flaky_proxy import FlakyProxy, Trouble
from benchmarks.skyrl_server import SkyrlServer
from tests.engines.test_contract import call, collect
from tests.external.tinker.conftest import BATCH, Settings, make_trainer, read_adapter
from tests.external.tinker.test_skyrl import PROMPT, ref_of, run_engine

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.errors import EngineGone, TrainerAbsent
from openclaw_rl.tinker.version_file import read_version


@pytest.fixture
def proxy(server: SkyrlServer) -> Iterator[FlakyProxy]:
    with FlakyProxy(server.url) as started:
        yield started


@pytest.mark.parametrize("trouble", [429, 500, 503])
def test_a_reply_and_a_step_come_through_errors(
    settings: Settings, server: SkyrlServer, proxy: FlakyProxy, tmp_path: Path, trouble: Trouble
) -> None:
    config = settings(**{"tinker.url": proxy.url, "train.optimizer.learning_rate": 0.01})
    calm = make_trainer(config)
    one = calm.step(BATCH, str(tmp_path / "000001-a"))
    calm.load(folder=one.folder, method_state=one.memory)
    expected = read_adapter(
        server,
        read_version(ref_of(calm.step(BATCH, str(tmp_path / "000002-calm")), 2)).sampler,
        tmp_path / "calm",
    )

    async def body(engine: EngineClient) -> None:
        undisturbed = await collect(engine, call(PROMPT, version=0, max_tokens=8, seed=3))
        proxy.begin_trouble(trouble)
        assert (
            await collect(engine, call(PROMPT, version=0, max_tokens=8, seed=3))
        ).token_ids == undisturbed.token_ids

    run_engine(config, body)
    again = make_trainer(config)
    again.load(folder=one.folder, method_state=one.memory)
    found = again.step(BATCH, str(tmp_path / "000002-troubled"))
    assert proxy.refused > 0
    weights = read_adapter(server, read_version(ref_of(found, 2)).sampler, tmp_path / "troubled")
    for name, weight in expected.items():
        np.testing.assert_allclose(
            weights[name], weight, rtol=1e-4, atol=1e-6, err_msg="one step, not two"
        )


@pytest.mark.parametrize("path", ["/forward_backward", "/optim_step"])
def test_a_call_whose_answer_is_lost_is_one_step(
    settings: Settings, server: SkyrlServer, proxy: FlakyProxy, tmp_path: Path, path: str
) -> None:
    """The SDK repeats the call, and the server does not recognise it: a second step would move by the momentum."""
    config = settings(**{"tinker.url": proxy.url, "train.optimizer.learning_rate": 0.01})
    trainer = make_trainer(config)
    one = trainer.step(BATCH, str(tmp_path / "000001-a"))
    found = {}
    for name in ("calm", "troubled"):
        if name == "troubled":
            proxy.begin_trouble("lose", every=3, path=path)
        trainer.load(folder=one.folder, method_state=one.memory)
        found[name] = trainer.step(BATCH, str(tmp_path / f"000002-{name}"))
        proxy.end_trouble()
    weights = {
        name: read_adapter(server, read_version(ref_of(result, 2)).sampler, tmp_path / name)
        for name, result in found.items()
    }
    assert proxy.refused > 0
    for name, weight in weights["calm"].items():
        np.testing.assert_allclose(
            weights["troubled"][name], weight, rtol=1e-4, atol=1e-6, err_msg="one step, not two"
        )


@pytest.mark.parametrize("path", ["/save_weights", "/save_weights_for_sampler"])
def test_a_checkpoint_whose_answer_is_lost_stops_nothing(
    settings: Settings, server: SkyrlServer, proxy: FlakyProxy, tmp_path: Path, path: str
) -> None:
    """The SDK repeats the call, and the server refuses the name with 409, which the SDK repeats for five minutes."""
    trainer = make_trainer(
        settings(**{"tinker.url": proxy.url, "train.optimizer.learning_rate": 0.01})
    )
    one = trainer.step(BATCH, str(tmp_path / "000001-a"))
    trainer.load(folder=one.folder, method_state=one.memory)
    found, began = {}, time.monotonic()
    for name in ("calm", "troubled"):
        if name == "troubled":
            began = time.monotonic()
            proxy.begin_trouble("lose", every=1000, path=path)
        trainer.load(folder=one.folder, method_state=one.memory)
        found[name] = trainer.step(BATCH, str(tmp_path / f"000002-{name}"))
    assert proxy.refused == 1
    assert time.monotonic() - began < 120
    weights = {
        name: read_adapter(server, read_version(ref_of(result, 2)).sampler, tmp_path / name)
        for name, result in found.items()
    }
    for name, weight in weights["calm"].items():
        np.testing.assert_allclose(weights["troubled"][name], weight, rtol=1e-4, atol=1e-6)
    trainer.step(
        BATCH, str(tmp_path / "000003-a")
    )  # from the state whose answer was lost, by the same client


def test_requests_without_an_answer_end_and_are_one_line(
    settings: Settings, proxy: FlakyProxy, tmp_path: Path
) -> None:
    config = settings(**{"tinker.url": proxy.url, "tinker.call_timeout": 60.0})
    trainer = make_trainer(config)
    one = trainer.step(BATCH, str(tmp_path / "000001-a"))
    trainer.load(folder=one.folder, method_state=one.memory)

    async def body(engine: EngineClient) -> None:
        await collect(engine, call(PROMPT, version=0, max_tokens=2, seed=3))
        proxy.begin_trouble("hang", every=1)
        began = time.monotonic()
        with pytest.raises(EngineGone, match="gave no answer within 60 s") as caught:
            await collect(engine, call(PROMPT, version=0, max_tokens=2, seed=3))
        assert "\n" not in str(caught.value)
        with pytest.raises(TrainerAbsent, match="within 60 s"):
            await asyncio.to_thread(trainer.step, BATCH, str(tmp_path / "000002-b"))
        assert time.monotonic() - began < 200
        proxy.end_trouble()
        reply = await collect(engine, call(PROMPT, version=0, max_tokens=2, seed=3))
        assert len(reply.token_ids) == 2

    run_engine(config, body)
