"""Versions that are whole models, beside adapters: each against the plain forward pass of its own weights."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engines.contract_fixtures import closing
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.embedded.full_models import MultiModelEngine
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.sequence import EngineSequence, NewToken, SequenceScored
from openclaw_rl.errors import EngineError
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import Config, EngineConfig, ModelConfig, train_settings
from openclaw_rl.types import Generation, PolicyRef, Sampling

Refs = dict[int, PolicyRef]
Reference = Callable[[int, Sequence[int], Sequence[int], float], np.ndarray]
ATOL = 1e-5


def _ref(version: int, folder: Path) -> PolicyRef:
    return PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))


@pytest.fixture(scope="module")
def whole(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Refs:
    """Versions 5 to 7: the base's weights, moved at random; 6 in two files."""
    out = {}
    for version in (5, 6, 7):
        torch.manual_seed(version)
        model = AutoModelForCausalLM.from_pretrained(model_folder)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        folder = tmp_path_factory.mktemp(f"whole{version}")
        model.save_pretrained(folder, max_shard_size="20KB" if version == 6 else "5GB")
        out[version] = _ref(version, folder)
    assert len(list(Path(str(out[6].path)).glob("*.safetensors"))) > 1
    return out


@pytest.fixture(scope="module")
def all_refs(refs: Refs, whole: Refs) -> Refs:
    return refs | whole


@pytest.fixture(scope="module")
def logprobs(reference: Reference, whole: Refs) -> Reference:
    """[R] of any version, by transformers alone."""
    models = {v: AutoModelForCausalLM.from_pretrained(str(r.path)).eval() for v, r in whole.items()}

    def of(
        version: int, prompt: Sequence[int], response: Sequence[int], temperature: float
    ) -> np.ndarray:
        if version not in models:
            return reference(version, prompt, response, temperature)
        ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
        with torch.no_grad():
            rows = (
                models[version](input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
            ).log_softmax(-1)
        return rows.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()

    return of


class Bench:
    """A fleet, and everything that it gave out."""

    def __init__(self, folder: Path, versions: int = 8) -> None:
        model = EmbeddedModel.load(ModelConfig(path=str(folder), device="cpu"))
        self.fleet = MultiModelEngine(
            model, EngineConfig(prefill_chunk=16, max_batch=6, max_loaded_versions=versions)
        )
        self.tokens: dict[str, list[NewToken]] = {}
        self.scores: dict[str, np.ndarray] = {}

    def ask(
        self, name: str, version: int, prompt: np.ndarray, **sampling: object
    ) -> EngineSequence:
        self.tokens[name] = []
        return self.fleet.generate(
            name, version, prompt, Sampling(**({"max_tokens": 8, "seed": 0} | sampling)), ()
        )

    def step(self) -> None:
        for item in self.fleet.step():
            if isinstance(item, SequenceScored):
                self.scores[item.seq.owner] = item.logprobs
            else:
                self.tokens[item.seq.owner].append(item)

    def finish(self) -> None:
        while self.fleet.has_work:
            self.step()

    def load(self, *refs: PolicyRef) -> None:
        files = {
            (r.version, r.digest): self.fleet.read_version(r)
            for r in self.fleet.unread_policies(refs)
        }
        for _ in self.fleet.load_versions(refs, files):
            self.step()

    def reply(self, name: str) -> tuple[list[int], list[float]]:
        return [t.token for t in self.tokens[name]], [t.logprob for t in self.tokens[name]]


def random_ids(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, length).astype(np.int32)


def test_whole_models_and_adapters_answer_side_by_side(
    model_folder: Path, all_refs: Refs, logprobs: Reference
) -> None:
    bench = Bench(model_folder)
    bench.load(*all_refs.values())
    assert bench.fleet.versions == (0, 1, 2, 3, 5, 6, 7)
    rng = np.random.default_rng(0)
    asked = {}
    for i in range(21):
        name, version, temperature = f"r{i}", bench.fleet.versions[i % 7], (1.0, 0.6, 1.5)[i % 3]
        prompt = random_ids(i, int(rng.integers(1, 50)))
        asked[name] = (version, prompt, temperature)
        bench.ask(
            name,
            version,
            prompt,
            temperature=temperature,
            seed=i,
            max_tokens=int(rng.integers(1, 30)),
        )
        for _ in range(int(rng.integers(0, 3))):
            bench.step()
    for version in (0, 1, 5, 6):
        bench.fleet.score(f"s{version}", version, random_ids(1, 20), random_ids(2, 9), 0.7)
    bench.finish()
    for name, (version, prompt, temperature) in asked.items():
        ids, found = bench.reply(name)
        np.testing.assert_allclose(found, logprobs(version, prompt, ids, temperature), atol=ATOL)
    for version in (0, 1, 5, 6):
        expected = logprobs(version, random_ids(1, 20), random_ids(2, 9), 0.7)
        np.testing.assert_allclose(bench.scores[f"s{version}"], expected, atol=ATOL)
    assert bench.fleet.running_count == bench.fleet.waiting_count == 0


def test_replies_end_on_the_model_on_which_they_began(
    model_folder: Path, all_refs: Refs, logprobs: Reference
) -> None:
    bench = Bench(model_folder)
    bench.load(all_refs[0], all_refs[5])
    prompt = random_ids(3, 10)
    bench.ask("old", 5, prompt, max_tokens=60)
    bench.step()
    bench.load(all_refs[1], all_refs[6])
    bench.ask("new", 6, prompt, max_tokens=60)
    assert bench.fleet.versions == (1, 6)
    with pytest.raises(EngineError, match="version 5 is not loaded"):
        bench.ask("late", 5, prompt)
    assert not bench.fleet.has_unused, "the old one still answers"
    bench.finish()
    for name, version in (("old", 5), ("new", 6)):
        ids, found = bench.reply(name)
        assert len(ids) == 60
        np.testing.assert_allclose(found, logprobs(version, prompt, ids, 1.0), atol=ATOL)
    assert bench.fleet.has_unused
    for _ in bench.fleet.unload_unused():
        pass
    assert not bench.fleet.has_unused
    assert bench.fleet.unread_policies([all_refs[5], all_refs[6]]) == [all_refs[5]], "it was let go"
    bench.load(all_refs[5])
    bench.ask("again", 5, prompt, max_tokens=60)
    bench.finish()
    assert bench.reply("again") == bench.reply("old")


def test_full_models_count_as_loaded_versions(model_folder: Path, all_refs: Refs) -> None:
    bench = Bench(model_folder, versions=2)
    bench.load(all_refs[0], all_refs[5])
    bench.ask("running", 5, random_ids(1, 4), max_tokens=40)
    bench.step()
    with pytest.raises(
        EngineError,
        match=r"\[1, 6\] requested and \[5\] still answering; engine\.max_loaded_versions is 2",
    ):
        bench.load(all_refs[1], all_refs[6])
    assert bench.fleet.versions == (0, 5)
    bench.load(all_refs[6])
    bench.finish()
    bench.load(all_refs[1], all_refs[6])
    assert bench.fleet.versions == (1, 6)


def test_a_cancelled_reply_of_a_whole_model_frees_its_row(
    model_folder: Path, all_refs: Refs
) -> None:
    bench = Bench(model_folder)
    bench.load(all_refs[0], all_refs[5])
    seqs = [bench.ask(f"r{i}", 5, random_ids(i, 4), max_tokens=400) for i in range(8)]
    bench.step()
    assert (bench.fleet.running_count, bench.fleet.waiting_count) == (4, 4), "what fits one chunk"
    for seq in seqs[1:]:
        bench.fleet.cancel(seq)
    bench.step()
    assert (bench.fleet.running_count, bench.fleet.waiting_count) == (1, 0)


def _lose(state: dict[str, torch.Tensor]) -> None:
    del state["model.layers.1.mlp.up_proj.weight"]


def _break(state: dict[str, torch.Tensor]) -> None:
    state["model.norm.weight"] *= float("nan")


def _narrow(state: dict[str, torch.Tensor]) -> None:
    state["model.norm.weight"] = state["model.norm.weight"][:-1].contiguous()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_lose, r"1 weights are missing or unknown \(the first: model\.layers\.1\.mlp\.up_proj"),
        (_break, r"model\.norm\.weight contains values that are not finite"),
        (_narrow, r"size mismatch for model\.norm\.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_changes(
    model_folder: Path,
    all_refs: Refs,
    tmp_path: Path,
    harm: Callable[[dict[str, torch.Tensor]], None],
    words: str,
) -> None:
    bench = Bench(model_folder)
    bench.load(all_refs[0], all_refs[5])
    folder = tmp_path / "broken"
    shutil.copytree(str(all_refs[7].path), folder)
    state = load_file(folder / "model.safetensors")
    harm(state)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(EngineError, match=words):
        bench.load(all_refs[0], _ref(9, folder))
    with pytest.raises(EngineError, match=f"have digest .*, expected {'0' * 64}"):
        bench.load(PolicyRef(version=9, path=str(folder), digest="0" * 64))
    assert bench.fleet.versions == (0, 5)


def test_another_kind_of_model_is_no_version(model_folder: Path, tmp_path: Path) -> None:
    other = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2))  # fmt: skip
    other.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="cannot be served as"):
        Bench(model_folder).fleet.read_version(_ref(9, tmp_path))


def test_the_engine_serves_the_weights_that_the_trainer_wrote(
    model_folder: Path, all_refs: Refs, tmp_path: Path
) -> None:
    """Three versions of one line, side by side: each gives its trainer's log-probabilities."""
    made = make_method(train_settings({"method": "binary"}))
    train = train_settings(
        {
            "finetune": "full",
            "optimizer.learning_rate": 1e-3,
            "safety.max_turn_log_ratio": 9.0,
            "safety.max_step_kl": 1e9,
        }
    )
    trainer = LocalTrainer(str(model_folder), made, train, ModelConfig(device="cpu"))
    prompt, response = random_ids(1, 12), random_ids(2, 9)
    row = TokenSequence(prompt_ids=prompt, response_ids=response, temperature=1.0)
    refs, expected = [all_refs[0]], [trainer.logprobs([row])[0].numpy()]
    for version in (10, 11):
        sample = Sample(
            turn=f"t{version}", agent="a", prompt_ids=prompt, response_ids=response, logprobs=expected[-1],
            mask=np.ones(9, dtype=bool), temperature=1.0, version=0, reward=1.0,
        )  # fmt: skip
        result = trainer.step([sample], str(tmp_path / str(version)))
        refs.append(PolicyRef(version=version, path=str(result.folder), digest=result.digest))
        expected.append(trainer.logprobs([row])[0].numpy())
    assert np.abs(expected[2] - expected[1]).min() > 1e-3, "versions differ"
    bench = Bench(model_folder)
    bench.load(*refs)
    for ref in refs:
        bench.fleet.score(str(ref.version), ref.version, prompt, response, 1.0)
    bench.finish()
    for ref, logps in zip(refs, expected, strict=True):
        np.testing.assert_allclose(bench.scores[str(ref.version)], logps, atol=ATOL)


def test_through_the_process_replies_go_on_while_a_whole_model_is_loaded(
    engine_config: Callable[..., Config],
    start: Callable[..., Any],
    short_home: Callable[[], Path],
    all_refs: Refs,
    logprobs: Reference,
) -> None:
    config = engine_config(short_home())
    start(config)
    prompt = random_ids(4, 6)

    async def ask(
        client: EngineClient, version: int, tokens: int
    ) -> tuple[list[int], list[float], list[float]]:
        call = Generation(
            id=f"g{version}", version=version, prompt_ids=prompt,
            sampling=Sampling(max_tokens=tokens, seed=0), stop_token_ids=(),
        )  # fmt: skip
        ids, found, times = [], [], []
        async for chunk in client.generate(call):
            ids += chunk.token_ids
            found += chunk.logprobs
            times.append(time.perf_counter())
        return ids, found, times

    async def swap() -> None:
        async with closing(EngineClient(config.engine_socket)) as client:
            await client.wait_ready(180)
            await client.load([all_refs[0], all_refs[5]])
            old = asyncio.create_task(ask(client, 5, 480))
            await asyncio.sleep(0.05)
            await client.load([all_refs[6]])
            loaded = time.perf_counter()
            new = await ask(client, 6, 20)
            replies = {5: await old, 6: new}
        assert replies[5][2][0] < loaded < replies[5][2][-1], "it was being written all the time"
        for version, (ids, found, _) in replies.items():
            np.testing.assert_allclose(found, logprobs(version, prompt, ids, 1.0), atol=ATOL)
        assert len(replies[5][0]) == 480

    asyncio.run(swap())
