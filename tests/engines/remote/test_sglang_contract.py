"""The whole engine contract on SGLang's wire, in each of the ways in which its versions stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.contract_fixtures import Rig
from tests.engines.sglang_server import SglangWire
from tests.engines.test_contract import *  # noqa: F403

from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.engines.remote.sglang import SglangEngine
from openclaw_rl.protocols import Engine
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import PolicyRef


@pytest.fixture(scope="module", params=["cumulative", "incremental", "incremental, whole logprobs"])
def sglang(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[SglangWire]:
    with SglangWire(model_folder, mode=request.param, key="secret") as wire:
        yield wire


@pytest.fixture
def rig(sglang: SglangWire, refs: dict[int, PolicyRef], model_folder: Path) -> Rig:
    def connect() -> Engine:
        http = HttpClient(sglang.url, "sglang", api_key="secret")
        return SglangEngine(http, EngineConfig(backend="sglang"), str(model_folder))

    async def running(engine: Engine) -> int:
        return sglang.running

    return Rig(connect, refs[1], sglang.settings["max_req_input_len"] - 1, running)
