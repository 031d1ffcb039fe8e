"""One real system on a real vLLM for the whole session: people talk to it, it learns, and then it is asked everything.

`make test-engines` gives `--vllm-python`. The reference of every number is transformers' and PEFT's own forward pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.faults.client_log import ClientLog
from benchmarks.faults.clients import crowd
from peft import LoraConfig, PeftModel, get_peft_model
from tests.engines.contract_fixtures import BASE, EngineHarness
from transformers import AutoModelForCausalLM

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.protocols import Engine
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, Config
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import PolicyRef

CONTEXT = 1024
TALK = 12.0  # seconds
ADAPTERS = {
    1: {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    2: {
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 6},
    },
    3: {
        "r": 3,
        "lora_alpha": 9,
        "target_modules": ["v_proj"],
        "use_rslora": True,
        "alpha_pattern": {"v_proj": 5},
    },
}
Reference = Callable[[int, Sequence[int], Sequence[int]], torch.Tensor]
_reports: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vllm-python", default=".vllm-venv/bin/python", help="an interpreter that has vllm"
    )


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _reports:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report() -> Callable[[str], None]:
    """A line for the end of the run."""
    return _reports.append


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    # Not resolved: a virtual environment's interpreter is known by its path.
    python = Path(str(request.config.getoption("--vllm-python"))).absolute()
    assert python.exists(), (
        f"{python} is not there; `make test-engines` makes it, or give --vllm-python"
    )
    return str(python)


@dataclass
class Served:
    """The running system, and what people saw of it while it learned."""

    system: SubprocessSystem
    store: Store
    ledger: ClientLog = field(default_factory=ClientLog)

    def __post_init__(self) -> None:
        self._renderer = Renderer(ModelFiles.from_path(STARTER))

    @property
    def config(self) -> Config:
        return self.system.config

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._renderer.stop_token_ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._renderer.tokenizer.backend.decode([*ids]))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, vllm_python: str) -> Iterator[Served]:
    """People have talked to it for a while, and several versions were trained and served."""
    torch.set_num_threads(1)
    settings = {
        "engine.backend": "vllm",
        "engine.python": vllm_python,
        "engine.max_context": CONTEXT,
        "serve.engine_wait": 240.0,
        "run.max_crashes": 20,
    }
    with SubprocessSystem(scratch_config(tmp_path_factory.mktemp("served"), settings)) as system:
        store = Store.open(system.config.store_path, create=False)
        found = Served(system, store)

        async def talk() -> None:
            async with crowd(system, 6, found.ledger):
                await asyncio.sleep(TALK)

        asyncio.run(talk())
        system.wait_until_settled()
        yield found
        store.close()


# ---------------------------------------------------------------------------- versions, references


def base_model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        ModelFiles.from_path(STARTER).folder, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="session")
def refs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, PolicyRef]:
    """Version 0 is the base; 1 to 3 are random adapters of other ranks, targets and scales."""
    out = {0: BASE}
    for version, settings in ADAPTERS.items():
        torch.manual_seed(version)
        tuned = get_peft_model(base_model(), LoraConfig(task_type="CAUSAL_LM", **settings))
        for name, weight in tuned.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.05)
        out[version] = saved(tuned, tmp_path_factory.mktemp(f"adapter{version}"), version)
    return out


def saved(model: torch.nn.Module, folder: Path, version: int) -> PolicyRef:
    model.save_pretrained(folder)
    return PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))


@pytest.fixture(scope="session")
def reference(refs: dict[int, PolicyRef]) -> Reference:
    """[R, V] logits of the response by a plain forward pass over the whole sequence at once."""

    @lru_cache
    def model(version: int) -> torch.nn.Module:
        path = refs[version].path
        if path is None:
            return base_model()
        return PeftModel.from_pretrained(base_model(), path).eval()

    def logits(version: int, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
        with torch.no_grad():
            return model(version)(input_ids=ids).logits[0, len(prompt) - 1 : -1]

    return logits


def chosen(logits: torch.Tensor, ids: Sequence[int], temperature: float = 1.0) -> np.ndarray:
    """[R] log softmax(logits / temperature) of the ids."""
    rows = (logits / temperature).log_softmax(-1)
    return rows.gather(1, torch.tensor([*map(int, ids)])[:, None])[:, 0].numpy()


# --------------------------------------------------------------------------------------- the engine


@pytest.fixture
def harness(served: Served, refs: dict[int, PolicyRef]) -> EngineHarness:
    """The contract's: a client of its own, beside the gateway's, on the same vLLM."""

    async def running(engine: Engine) -> int:
        """By vLLM's own figures."""
        assert isinstance(engine, VllmEngine)
        lines = str(await engine.http.call_json("GET", "/metrics")).splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(names)))

    return EngineHarness(
        lambda: connect_engine(served.config),
        refs[1],
        CONTEXT,
        running,
        tolerance=1e-4,
        timeout=120,
    )
