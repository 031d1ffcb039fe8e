"""A random Qwen3 of two layers, PEFT adapters for it, their own forward pass as reference, and engine processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.engines.contract_fixtures import EngineHarness, closing, serve_engine, serve_in_child
from tests.engines.vllm_server import VllmDouble
from transformers import Qwen3Config, Qwen3ForCausalLM

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.protocols import Engine
from openclaw_rl.settings.load import Config, EngineConfig, from_flat
from openclaw_rl.testing import ScriptedEngine, write_adapter
from openclaw_rl.types import PolicyRef

VOCAB, CONTEXT = 64, 512
Reference = Callable[[int, Sequence[int], Sequence[int], float], np.ndarray]


def _base() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=CONTEXT,
            initializer_range=0.3,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    _base().save_pretrained(folder)
    return folder


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


@pytest.fixture(scope="session")
def refs(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, PolicyRef]:
    """Version 0 is the base; 1 to 3 are adapters of other ranks, targets and scales, written by PEFT."""
    out = {0: PolicyRef(version=0, path=None, digest="")}
    for version, settings in ADAPTERS.items():
        torch.manual_seed(version)
        tuned = get_peft_model(_base(), LoraConfig(task_type="CAUSAL_LM", **settings))
        for name, weight in tuned.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.3)
        folder = tmp_path_factory.mktemp(f"adapter{version}")
        tuned.save_pretrained(folder)
        out[version] = PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))
    return out


@pytest.fixture(scope="session")
def reference(model_folder: Path, refs: dict[int, PolicyRef]) -> Reference:
    """[R] log-probabilities by PEFT's own forward pass over the whole sequence at once."""
    plain = Qwen3ForCausalLM.from_pretrained(model_folder).eval()
    models = {0: plain}
    for version in ADAPTERS:
        fresh = Qwen3ForCausalLM.from_pretrained(model_folder)
        models[version] = PeftModel.from_pretrained(fresh, refs[version].path).eval()

    def logprobs(
        version: int, prompt: Sequence[int], response: Sequence[int], temperature: float
    ) -> np.ndarray:
        ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
        with torch.no_grad():
            logits = models[version](input_ids=ids).logits[0, len(prompt) - 1 : -1]
        rows = (logits / temperature).log_softmax(-1)
        return rows.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()

    return logprobs


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["openclaw_rl.engines.embedded.server", "transformers.models.qwen3.modeling_qwen3"]
)


class EngineProcess:
    """An engine process on a socket of its own, forked from a process that has imported torch."""

    def __init__(self, config: Config, *, below_parent: bool = False) -> None:
        self.socket = config.engine_socket
        target = serve_in_child if below_parent else serve_engine
        self._process = _FORKS.Process(target=target, args=(config,))
        self._process.start()

    def wait_ready(self) -> None:
        async def ask() -> None:
            async with closing(EngineClient(self.socket)) as client:
                await client.wait_ready(180)

        asyncio.run(ask())

    def end(self) -> int | None:
        """Send SIGTERM and return the exit status."""
        self._process.terminate()
        self._process.join(240)
        return self._process.exitcode


@pytest.fixture(scope="session")
def engine_config(model_folder: Path) -> Callable[..., Config]:
    def make(home: Path, **engine: object) -> Config:
        flat = {f"engine.{k}": v for k, v in engine.items()}
        return from_flat(
            {"home": str(home), "model.path": str(model_folder), "model.device": "cpu"} | flat
        )

    return make


@pytest.fixture(scope="session")
def short_home() -> Iterator[Callable[[], Path]]:
    """Homes with short names: a Unix socket's path is limited."""
    import tempfile

    with contextlib.ExitStack() as stack:
        yield lambda: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocrl-")))


@pytest.fixture
def start() -> Iterator[Callable[..., EngineProcess]]:
    """Starts engine processes, which end with the test at the latest."""
    started: list[EngineProcess] = []

    def one(config: Config, *, below_parent: bool = False) -> EngineProcess:
        started.append(EngineProcess(config, below_parent=below_parent))
        return started[-1]

    yield one
    for each in started:
        each.end()


@pytest.fixture(scope="session")
def process(
    engine_config: Callable[..., Config], short_home: Callable[[], Path]
) -> Iterator[EngineProcess]:
    """One engine process for all tests that do not harm it. It must end cleanly and take its socket with it."""
    started = EngineProcess(
        engine_config(short_home(), prefill_chunk=16, max_batch=8, max_loaded_versions=4)
    )
    try:
        started.wait_ready()
        yield started
    finally:
        code = started.end()
    assert (code, started.socket.exists()) == (0, False)


SCRIPT = [5, 9, 11, 3, 7, 2]


@pytest.fixture
def vllm_double(tmp_path: Path) -> Iterator[VllmDouble]:
    """A server that speaks vLLM's wire, on a socket of its own, without a model."""
    with VllmDouble(
        tmp_path / "vllm.sock", ScriptedEngine(lambda prompt, version: SCRIPT, delay=0.0005)
    ) as double:
        yield double


async def _scripted_running(engine: Engine) -> int:
    assert isinstance(engine, ScriptedEngine)
    return engine.running.total()


async def _client_running(engine: Engine) -> int:
    assert isinstance(engine, EngineClient)
    info = await engine.info()
    return info.running + info.waiting


@pytest.fixture(params=["scripted", "embedded", "vllm's wire"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> EngineHarness:
    if request.param == "embedded":
        process, refs = request.getfixturevalue("process"), request.getfixturevalue("refs")
        return EngineHarness(
            lambda: EngineClient(process.socket), refs[1], CONTEXT, _client_running
        )
    digest = write_adapter(tmp_path / "adapter")
    adapter = PolicyRef(version=1, path=str(tmp_path / "adapter"), digest=digest)
    if request.param == "scripted":

        def connect() -> Engine:
            return ScriptedEngine(
                lambda prompt, version: SCRIPT, delay=0.0005, context_length=CONTEXT
            )

        return EngineHarness(connect, adapter, CONTEXT, _scripted_running)
    double: VllmDouble = request.getfixturevalue("vllm_double")

    async def running(engine: Engine) -> int:
        return double.engine.running.total()

    return EngineHarness(
        lambda: VllmEngine(
            double.http(), EngineConfig(backend="vllm"), folder=tmp_path / "identity"
        ),
        adapter,
        CONTEXT,
        running,
    )


@pytest.fixture
def tiny_engine_config() -> EngineConfig:
    return EngineConfig(
        prefill_chunk=16, max_batch=6, max_loaded_versions=4, prefix_cache_tokens=2048
    )


def pytest_report_header() -> str:
    return f"engines: torch {torch.__version__}, CUDA {'yes' if torch.cuda.is_available() else 'NO'}, pid {os.getpid()}"
