"""The engine contract over SGLang's HTTP; the tests of streams in each of the ways in which its versions stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines import test_contract
from tests.engines.contract_fixtures import EngineHarness
from tests.engines.sglang_server import SglangWire
from tests.engines.test_contract import *  # noqa: F403

from openclaw_rl.engines.remote.http_client import SGLANG_HEALTH, HttpClient
from openclaw_rl.engines.remote.sglang import SglangEngine
from openclaw_rl.protocols import Engine
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import PolicyRef

MODES = ["incremental", "cumulative", "incremental, whole logprobs"]
STREAM_TESTS = {
    test_contract.test_streams_to_the_length_asked,
    test_contract.test_a_reply_may_fill_the_context,
    test_contract.test_stop_ids_end_the_reply_and_belong_to_it,
    test_contract.test_a_seed_reproduces_the_reply_whatever_else_runs,
    test_contract.test_alternatives_are_as_many_as_asked,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    modes = MODES if metafunc.function in STREAM_TESTS else MODES[:1]
    metafunc.parametrize("sglang", modes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def sglang(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[SglangWire]:
    with SglangWire(model_folder, mode=request.param, key="secret") as wire:
        yield wire


@pytest.fixture
def harness(sglang: SglangWire, refs: dict[int, PolicyRef], model_folder: Path) -> EngineHarness:
    def connect() -> Engine:
        http = HttpClient(sglang.url, SGLANG_HEALTH, api_key="secret")
        return SglangEngine(http, EngineConfig(backend="sglang"), str(model_folder))

    async def running(engine: Engine) -> int:
        return sglang.running

    return EngineHarness(connect, refs[1], sglang.settings["max_req_input_len"] - 1, running)
