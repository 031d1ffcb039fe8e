"""By vLLM's and PEFT's own documented calls: a trained adapter loads in both; and we attach to a server not ours."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from peft import PeftModel
from tests.engines.contract_fixtures import BASE
from tests.engines.test_contract import call, collect
from tests.external.engines.conftest import Served, base_model, chosen, saved
from transformers import AutoModelForCausalLM

from openclaw_rl.common import process_guard
from openclaw_rl.common.sockets import free_port
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER, Config, foreign_environment, from_flat
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Chunk, Generation, Policy, PolicyRef

PROMPTS = [[*range(n, n + 3 * n, 3)] for n in (5, 20, 60)]
FULL = 900  # far above the versions that a policy reaches here while it is trained


@pytest.fixture(scope="module")
def trained(served: Served) -> Policy:
    """The newest version that our trainer made while people talked."""
    with served.store.read() as conn:
        found = policies.head(conn)
    assert found.path is not None
    return found


def _untied(scale: float) -> torch.nn.Module:
    """The starter with a head of its own, and with all weights moved a little."""
    model = base_model()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    torch.manual_seed(FULL)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + scale * torch.randn_like(weight))
    return model.eval()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> PolicyRef:
    return saved(_untied(0.05), tmp_path_factory.mktemp("full"), FULL)


@pytest.fixture(scope="module")
def server(
    trained: Policy, vllm_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Config]:
    """A vLLM started as its documentation says, with the trained adapter among `--lora-modules`."""
    folder = tmp_path_factory.mktemp("untied")
    shutil.copytree(ModelFiles.from_path(STARTER).folder, folder, dirs_exist_ok=True)
    _untied(0.0).save_pretrained(folder)
    port = free_port()
    command = [
        *(vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *(
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--api-key",
            "sk-documented",
            "--served-model-name",
            "documented",
        ),
        *("--dtype", "float32", "--max-model-len", "512", "--generation-config", "vllm"),
        *(
            "--enable-lora",
            "--max-lora-rank",
            "16",
            "--max-loras",
            "3",
            "--lora-modules",
            f"tuned={trained.path}",
        ),
    ]
    environment = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, process_guard.__file__, *command],
            env=foreign_environment(environment),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    config = from_flat(
        {
            "home": str(tmp_path_factory.mktemp("home")),
            "engine.backend": "vllm",
            "engine.url": f"http://127.0.0.1:{port}",
            "engine.api_key": "sk-documented",
            "engine.logprob_convention": "raw",
        }
    )
    try:
        _wait(config, process)
        yield config
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def _wait(config: Config, process: subprocess.Popen[bytes]) -> None:
    async def ask() -> None:
        engine = connect_engine(config)
        try:
            await engine.wait_ready(2)
        finally:
            await engine.close()

    end = time.monotonic() + 180
    while True:
        try:
            asyncio.run(ask())
            return
        except EngineGone:
            assert process.poll() is None, "vLLM ended"
            assert time.monotonic() < end, "vLLM did not answer in time"
            time.sleep(0.5)


def test_a_trained_adapter_loads_in_vllm_and_in_transformers(
    trained: Policy, server: Config
) -> None:
    assert trained.path is not None
    tuned = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(
            ModelFiles.from_path(STARTER).folder, dtype=torch.float32
        ),
        trained.path,
    ).eval()
    plain = base_model()
    api = openai.OpenAI(base_url=f"{server.engine.url}/v1", api_key="sk-documented", max_retries=0)
    api.post(
        "/load_lora_adapter", body={"lora_name": "again", "lora_path": trained.path}, cast_to=str
    )
    moved = 0.0
    for name in ("tuned", "again"):
        for prompt in PROMPTS:
            reply = api.completions.create(
                model=name,
                prompt=prompt,
                max_tokens=12,
                temperature=1.0,
                seed=3,
                logprobs=0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            choice = reply.choices[0]
            ids = choice.token_ids  # type: ignore[attr-defined]
            whole = torch.tensor([[*prompt, *ids]])
            with torch.no_grad():
                expected, base = (
                    chosen(m(input_ids=whole).logits[0, len(prompt) - 1 : -1], ids)
                    for m in (tuned, plain)
                )
            assert choice.logprobs is not None
            np.testing.assert_allclose(choice.logprobs.token_logprobs, expected, atol=1e-4)
            moved = max(moved, float(np.abs(expected - base).max()))
    assert moved > 0.05, "what was learned is in it"


def test_a_server_of_another_convention_or_key_is_refused_with_what_to_do(server: Config) -> None:
    async def ask(**changed: object) -> None:
        config = server.model_copy(update={"engine": server.engine.model_copy(update=changed)})
        engine = connect_engine(config)
        try:
            await engine.info()
        finally:
            await engine.close()

    with pytest.raises(
        EngineError, match=r"returns raw .*expected processed.*--logprobs-mode processed_logprobs"
    ):
        asyncio.run(ask(logprob_convention=None))
    with pytest.raises(EngineError, match="OPENCLAW_ENGINE_API_KEY"):
        asyncio.run(ask(api_key="sk-wrong"))


def _asked(n: int, version: int, tokens: int = 60) -> Generation:
    prompt = ((np.arange(1, 6 + n % 9) * (n + 3)) % 1500).astype(np.int32)
    return call(prompt, version=version, seed=n, max_tokens=tokens)


def test_full_weights_wait_for_their_turn_and_nobody_is_refused(
    server: Config, full: PolicyRef, trained: Policy
) -> None:
    adapter = trained.ref
    versions = {
        0: base_model(),
        FULL: _untied(0.05),
        adapter.version: PeftModel.from_pretrained(base_model(), adapter.path),
    }

    def check(asked: Generation, reply: Chunk) -> None:
        whole = torch.tensor([[*asked.prompt_ids.tolist(), *reply.token_ids]])
        with torch.no_grad():
            logits = versions[asked.version](input_ids=whole).logits[
                0, len(asked.prompt_ids) - 1 : -1
            ]
        np.testing.assert_allclose(reply.logprobs, chosen(logits, reply.token_ids), atol=1e-4)

    async def body(engine: VllmEngine) -> None:
        await engine.load([BASE, adapter, full])
        slow = engine.generate(_asked(0, 0, tokens=200))
        first = await slow.__anext__()
        order = [FULL, 0, FULL, adapter.version, FULL, adapter.version, 0, FULL]
        asked = [_asked(n + 1, version) for n, version in enumerate(order)]
        replies = await asyncio.gather(*(collect(engine, a) for a in asked))
        for one, reply in zip(asked, replies, strict=True):
            check(one, reply)
        chunks = [first, *[c async for c in slow]]
        ids, logprobs = (
            sum((getattr(c, name) for c in chunks), ()) for name in ("token_ids", "logprobs")
        )
        check(_asked(0, 0), Chunk(token_ids=ids, logprobs=logprobs))
        ids_R = np.array([5, 6, 7], dtype=np.int32)
        scored = await engine.score(
            version=FULL, prompt_ids=ids_R, response_ids=ids_R, temperature=1.0
        )
        check(
            call(ids_R, version=FULL), Chunk(token_ids=(5, 6, 7), logprobs=tuple(scored.tolist()))
        )
        bad = PolicyRef(version=FULL, path=full.path, digest="0" * 64)
        with pytest.raises(EngineError, match="digest"):
            await engine.load([BASE, bad])
        await engine.load([BASE, adapter])
        again = _asked(50, 0)
        check(again, await collect(engine, again))  # the base's own weights are back

    _run(server, body)


def test_a_tied_head_is_refused_where_it_would_not_be_renewed(
    server: Config, tmp_path: Path
) -> None:
    tied = saved(base_model(), tmp_path / "tied", FULL)

    async def body(engine: VllmEngine) -> None:
        await engine.load([BASE, tied])
        if (await engine.info()).device == "cpu":
            with pytest.raises(EngineError, match="tied to its embeddings"):
                await collect(engine, call(version=FULL))
        assert (await collect(engine, call(version=0))).finish == "length"

    _run(server, body)


def _run(config: Config, body: Callable[[VllmEngine], object]) -> None:
    async def whole() -> None:
        engine = connect_engine(config)
        assert isinstance(engine, VllmEngine)
        try:
            await body(engine)  # type: ignore[misc]
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(whole(), 120))
