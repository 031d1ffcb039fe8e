"""Our engine and trainer against SkyRL's server: the engine contract, log-probabilities, gradients, kill and resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.skyrl_server import KEY, RANK, SkyrlServer
from safetensors.torch import save_file
from tests.engines.contract_fixtures import BASE, closing
from tests.engines.test_contract import call, collect
from tests.external.tinker.conftest import (
    BATCH,
    Settings,
    make_sample,
    make_trainer,
    read_adapter,
    reference_logprobs,
)

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.socket_server import bind_socket
from openclaw_rl.engines.tinker.server import TinkerConnection, TinkerServer
from openclaw_rl.errors import EngineError, TrainerAbsent
from openclaw_rl.learner.loss.scored_batch import plain_sequence
from openclaw_rl.learner.tinker import training_session
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.settings.load import Config, train_settings
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.tinker.version_file import read_version
from openclaw_rl.types import PolicyRef

PROMPT = np.arange(1, 9, dtype=np.int32)
TIMEOUT = 600.0  # seconds of one test: the server compiles at each new shape


def take_step(config: Config, out: Path, samples: list[Sample] = BATCH) -> StepResult:
    return make_trainer(config).step(samples, str(out))


def ref_of(result: StepResult, version: int) -> PolicyRef:
    return PolicyRef(version=version, path=result.folder, digest=result.digest)


def run_engine(config: Config, body: Callable[[EngineClient], Awaitable[None]]) -> None:
    """Serve the engine socket in this process, and run `body` with a client."""

    async def run() -> None:
        server = TinkerServer(TinkerService(config), config)
        listen = await asyncio.get_running_loop().create_unix_server(
            lambda: TinkerConnection(server), sock=bind_socket(config.engine_socket)
        )
        async with closing(EngineClient(config.engine_socket)) as client:
            await body(client)
        listen.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_sampled_logprobs_are_those_of_a_fresh_forward(
    settings: Settings, server: SkyrlServer, model: Path, tmp_path: Path
) -> None:
    """Of the base and of a trained version, side by side; with the parts of the engine contract that fit."""
    config = settings(**{"train.optimizer.learning_rate": 0.05})
    trained = ref_of(take_step(config, tmp_path / "000001-a"), 1)
    adapter = read_adapter(server, read_version(trained).sampler, tmp_path / "adapter")

    async def body(engine: EngineClient) -> None:
        assert (await engine.info()).model == str(model)
        await engine.load([BASE, trained])
        replies = {}
        for version, weights in ((0, None), (1, adapter), (0, None)):
            reply = await collect(engine, call(PROMPT, version=version, max_tokens=12, seed=3))
            expected = reference_logprobs(model, weights, PROMPT, reply.token_ids)
            np.testing.assert_allclose(reply.logprobs, expected, atol=1e-3)
            response = np.array(reply.token_ids, dtype=np.int32)
            scores = await engine.score(
                version=version, prompt_ids=PROMPT, response_ids=response, temperature=1.0
            )
            np.testing.assert_allclose(scores, expected, atol=1e-3)
            assert replies.setdefault(version, reply.token_ids) == reply.token_ids, (
                "a seed reproduces the reply"
            )
        whole = replies[0]
        stop = next(t for t in whole[2:] if t not in whole[:2])
        stopped = await collect(
            engine, call(PROMPT, version=0, max_tokens=12, seed=3, stop=(63, stop))
        )
        assert (stopped.token_ids, stopped.finish) == (whole[: whole.index(stop) + 1], "stop")
        with pytest.raises(EngineError, match="the context is 128"):
            await collect(engine, call(np.resize(PROMPT, 128).astype(np.int32), version=0))
        with pytest.raises(EngineError, match="version 7 is not loaded"):
            await collect(engine, call(version=7))

    run_engine(config, body)


def test_a_wrong_key_address_or_model_is_one_line(settings: Settings) -> None:
    wrong = {
        "wrong": ("tinker.api_key", "refused the key"),
        "http://127.0.0.1:9": ("tinker.url", "does not answer within 3 s"),
        "org/none": ("tinker.model", "has no model 'org/none'"),
    }
    for value, (key, words) in wrong.items():

        async def body(engine: EngineClient, words: str = words) -> None:
            with pytest.raises(EngineError, match=words) as caught:
                await engine.info()
            assert "\n" not in str(caught.value)

        run_engine(
            settings(**{key: value, "tinker.connect_timeout": 3.0 if "9" in value else 60.0}), body
        )


def local_gradients(
    config: Config, folder: Path, adapter: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Gradients of the local trainer's step on the batch from this adapter, by PEFT names."""
    local = config.train.model_copy(update={"trainer": "local"})
    trainer = LocalTrainer(
        config.model.path, make_method(local), train_settings(_flat(local)), config.model
    )
    folder.mkdir()
    trainer._weights.write(folder)
    save_file(adapter, folder / "adapter_model.safetensors")
    (folder / "trainer.json").write_text(json.dumps({"steps": 0, "samples": 0}))
    trainer.load(folder=str(folder), method_state={})
    taken, found = trainer._optimizer.step, {}

    def record_gradients(rate: float, *, wanted: bool) -> float:
        for name, parameter in trainer._weights.parameters.items():
            assert parameter.grad is not None
            found[name.replace(".default.", ".")] = parameter.grad.clone()
        return taken(rate, wanted=wanted)

    trainer._optimizer.step = record_gradients  # type: ignore[method-assign]
    trainer.step(BATCH, str(folder.parent / "000001-local"))
    return found


def _flat(train: Any, prefix: str = "") -> dict[str, Any]:
    out = {}
    for name in type(train).model_fields:
        value = getattr(train, name)
        out |= (
            _flat(value, f"{prefix}{name}.")
            if hasattr(type(value), "model_fields")
            else {f"{prefix}{name}": value}
        )
    return out


@pytest.mark.parametrize("method", ["binary", "opd", "combine"])
def test_a_step_has_the_direction_of_the_local_trainers_gradient(
    settings: Settings,
    server: SkyrlServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Adam without moments and with a large epsilon is plain SGD: the change is the gradient, up to a factor."""
    monkeypatch.setattr(training_session, "ADAM_EPS", 1e4)
    config = settings(
        **{
            "train.method": method,
            "train.optimizer.learning_rate": 1e4,
            "train.optimizer.adam_beta1": 0.0,
            "train.optimizer.adam_beta2": 0.0,
            "train.optimizer.clip_grad": 1e9,
        }
    )
    trainer = make_trainer(config)
    trainer.score(BATCH)  # the model is there
    _, start, _ = trainer._session.save_version(f"start-{method}")
    before = read_adapter(server, start, tmp_path / "before")
    result = trainer.step(BATCH, str(tmp_path / f"000001-{method}"))
    after = read_adapter(server, read_version(ref_of(result, 1)).sampler, tmp_path / "after")
    gradients = local_gradients(config, tmp_path / "000000-start", before)
    assert gradients.keys() == after.keys()
    names = sorted(gradients)
    change = torch.cat([(after[name] - before[name]).flatten() for name in names])
    expected = -torch.cat([gradients[name].flatten() for name in names])
    cosine = torch.nn.functional.cosine_similarity(change, expected, dim=0).item()
    print(f"{method}: cosine {cosine:.6f}, norm {change.norm():.4g} against {expected.norm():.4g}")  # noqa: T201
    assert cosine > 0.999
    assert change.norm().item() == pytest.approx(expected.norm().item(), rel=0.01), (
        "the size is that of SGD, too"
    )


def test_a_killed_server_is_waited_for_and_the_step_is_taken_once(
    tmp_path: Path, model: Path, settings: Settings
) -> None:
    folder = tmp_path / "server"
    with SkyrlServer(folder, model) as server:
        config = settings(**{"tinker.url": server.url, "train.optimizer.learning_rate": 0.01})
        trainer = make_trainer(config)
        one = trainer.step(BATCH, str(tmp_path / "000001-a"))
        trainer.load(folder=one.folder, method_state=one.memory)
        calm = trainer.step(BATCH, str(tmp_path / "000002-calm"))
        expected = read_adapter(server, read_version(ref_of(calm, 2)).sampler, tmp_path / "calm")
        server.kill()
        short = make_trainer(settings(**{"tinker.url": server.url, "tinker.connect_timeout": 3.0}))
        short.load(folder=one.folder, method_state=one.memory)
        with pytest.raises(TrainerAbsent, match="does not answer within 3 s"):
            short.step(BATCH, str(tmp_path / "000002-lost"))
        assert not (tmp_path / "000002-lost").exists()
        server.__enter__()
        again = make_trainer(config)
        again.load(folder=one.folder, method_state=one.memory)
        found = again.step(BATCH, str(tmp_path / "000002-again"))
        weights = read_adapter(server, read_version(ref_of(found, 2)).sampler, tmp_path / "again")
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)
    assert found.metrics["step"] == calm.metrics["step"] == 2


def test_versions_answer_beside_training_and_after_a_restart(
    tmp_path: Path, server: SkyrlServer, model: Path, settings: Settings
) -> None:
    """With a model for each version: a reply does not touch the model that trains, and a killed server is no loss."""
    config = settings(**{"tinker.sample_from": "models", "train.optimizer.learning_rate": 0.05})
    trainer, rows = make_trainer(config), [plain_sequence(sample) for sample in BATCH]
    one = trainer.step(BATCH, str(tmp_path / "000001-a"))
    first = ref_of(one, 1)
    trainer.load(folder=one.folder, method_state=one.memory)
    trainer.step(BATCH, str(tmp_path / "000002-b"))
    before = np.concatenate(trainer._session.policy_logprobs(rows))
    adapter = read_adapter(server, read_version(first).sampler, tmp_path / "adapter")

    async def check_reply(engine: EngineClient) -> None:
        reply = await collect(engine, call(PROMPT, version=1, max_tokens=12, seed=3))
        expected = reference_logprobs(model, adapter, PROMPT, reply.token_ids)
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-3)

    async def body(engine: EngineClient) -> None:
        await engine.load([BASE, first])
        await check_reply(engine)
        after = np.concatenate(trainer._session.policy_logprobs(rows))
        np.testing.assert_allclose(after, before, atol=1e-5)
        server.kill()
        await asyncio.to_thread(server.__enter__)
        await check_reply(engine)

    run_engine(config, body)


def test_no_token_more_than_the_budget_is_sent(settings: Settings, tmp_path: Path) -> None:
    """The first step has its exact price; the second would exceed the budget by one token, and is not begun."""
    whole = {
        "train.optimizer.clip_grad": 1e9
    }  # a gradient that is clipped costs a pass more at this server
    one = take_step(settings(**whole), tmp_path / "000001-a")
    cost = int(one.metrics["tinker/tokens/total"])
    short = make_trainer(settings(**whole, **{"tinker.budget_tokens": 2 * cost - 1}))
    short.load(folder=one.folder, method_state=one.memory)
    with pytest.raises(TrainerAbsent, match=rf"has sent {cost} tokens, and would send {cost} more"):
        short.step(BATCH, str(tmp_path / "000002-a"))
    enough = make_trainer(settings(**whole, **{"tinker.budget_tokens": 2 * cost}))
    enough.load(folder=one.folder, method_state=one.memory)
    assert enough.step(BATCH, str(tmp_path / "000002-b")).metrics["tinker/tokens/total"] == 2 * cost


def test_a_rank_that_the_server_does_not_take_is_one_line(settings: Settings) -> None:
    with pytest.raises(TrainerAbsent, match=r"does not take this rank.*Set train.lora.rank"):
        make_trainer(settings(**{"train.lora.rank": 4 * RANK})).step(
            [make_sample(1, 1.0)], "/tmp/000001-none"
        )
    assert KEY.startswith("tml-")
