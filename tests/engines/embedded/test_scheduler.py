"""The core against PEFT's own forward pass: whatever joins, leaves, is cached or mixed, the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.utils import logging as transformers_logging

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import EngineSequence, NewToken, SequenceScored
from openclaw_rl.errors import EngineError, ModelError
from openclaw_rl.settings.load import EngineConfig, ModelConfig
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import PolicyRef, Sampling

Reference = Callable[[int, Sequence[int], Sequence[int], float], np.ndarray]
Refs = dict[int, PolicyRef]
ATOL = 1e-5


class Bench:
    """A core, and everything that it gave out."""

    def __init__(self, model: EmbeddedModel, config: EngineConfig) -> None:
        self.core = EmbeddedEngine(model, config)
        self.tokens: dict[str, list[NewToken]] = {}
        self.scores: dict[str, np.ndarray] = {}

    def ask(
        self, name: str, version: int, prompt: np.ndarray, **sampling: object
    ) -> EngineSequence:
        wanted = Sampling(**({"max_tokens": 8, "seed": 0} | sampling))
        self.tokens[name] = []
        return self.core.generate(name, version, prompt, wanted, ())

    def step(self) -> None:
        for item in self.core.step():
            if isinstance(item, SequenceScored):
                self.scores[item.seq.owner] = item.logprobs
            else:
                self.tokens[item.seq.owner].append(item)

    def finish(self) -> None:
        while self.core.has_work:
            self.step()

    def load(self, *refs: PolicyRef) -> None:
        files = {
            (r.version, r.digest): adapter_file.read_adapter(r)
            for r in self.core.unread_policies(refs)
        }
        for _ in self.core.load_versions(refs, files):
            self.step()  # as the server does: steps go on meanwhile

    def reply(self, name: str) -> tuple[list[int], list[float]]:
        return [t.token for t in self.tokens[name]], [t.logprob for t in self.tokens[name]]


@pytest.fixture(scope="module")
def model(model_folder: Path) -> EmbeddedModel:
    return EmbeddedModel.load(ModelConfig(path=str(model_folder), device="cpu"))


@pytest.fixture
def bench(model: EmbeddedModel, tiny_engine_config: EngineConfig, refs: Refs) -> Bench:
    made = Bench(model, tiny_engine_config)
    made.load(*refs.values())
    return made


def test_loading_draws_no_progress_bar_into_a_log(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers_logging.enable_progress_bar()
    EmbeddedModel.load(ModelConfig(path=str(model_folder), device="cpu"))
    assert capsys.readouterr().err == ""


def random_ids(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, length).astype(np.int32)


def test_a_batch_of_all_versions_with_joins_and_leaves_agrees_with_peft(
    bench: Bench, reference: Reference
) -> None:
    _mixed_batch(bench, reference, ATOL)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="NO CUDA DEVICE HERE: the engine is NOT tested on a GPU"
)
def test_the_same_on_cuda(
    model_folder: Path, tiny_engine_config: EngineConfig, refs: Refs, reference: Reference
) -> None:
    where = ModelConfig(path=str(model_folder), device="cuda", dtype="float32")
    bench = Bench(EmbeddedModel.load(where), tiny_engine_config)
    bench.load(*refs.values())
    _mixed_batch(bench, reference, 1e-4)


def _mixed_batch(bench: Bench, reference: Reference, atol: float) -> None:
    rng = np.random.default_rng(0)
    asked = {}
    for i in range(24):
        name, version, temperature = f"r{i}", i % 4, (1.0, 0.6, 1.5)[i % 3]
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
        for _ in range(int(rng.integers(0, 5))):
            bench.step()
    bench.finish()
    for name, (version, prompt, temperature) in asked.items():
        ids, logprobs = bench.reply(name)
        np.testing.assert_allclose(
            logprobs, reference(version, prompt, ids, temperature), atol=atol
        )
    assert bench.core.running_count == bench.core.waiting_count == 0


def test_a_batch_of_one_version_skips_the_mask_with_the_same_result(
    bench: Bench, reference: Reference
) -> None:
    for version in (1, 2, 3):
        prompt = random_ids(version, 20)
        for i in range(3):
            bench.ask(f"{version}-{i}", version, prompt, seed=i)
        bench.finish()
        for i in range(3):
            ids, logprobs = bench.reply(f"{version}-{i}")
            np.testing.assert_allclose(logprobs, reference(version, prompt, ids, 1.0), atol=ATOL)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 100])
def test_a_prompt_in_chunks_is_the_same_prompt(
    bench: Bench, reference: Reference, length: int
) -> None:
    prompt = random_ids(length, length)
    bench.ask("a", 1, prompt)
    bench.finish()
    ids, logprobs = bench.reply("a")
    np.testing.assert_allclose(logprobs, reference(1, prompt, ids, 1.0), atol=ATOL)


def test_others_get_a_token_between_two_chunks_of_a_long_prompt(bench: Bench) -> None:
    bench.ask("short", 1, random_ids(1, 4), max_tokens=60)
    bench.step()
    bench.ask("long", 1, random_ids(2, 160))
    before = len(bench.tokens["short"])
    for _ in range(10):  # 160 tokens are ten chunks of 16
        assert not bench.tokens["long"]
        bench.step()
    assert len(bench.tokens["short"]) == before + 10
    assert len(bench.tokens["long"]) == 1


def test_short_prompts_are_prefilled_together(bench: Bench, reference: Reference) -> None:
    prompts = [random_ids(i, n) for i, n in enumerate((3, 1, 4))]
    for i, prompt in enumerate(prompts):
        bench.ask(f"p{i}", i, prompt)
    bench.step()
    assert [len(t) for t in bench.tokens.values()] == [1, 1, 1]
    bench.finish()
    for i, prompt in enumerate(prompts):
        ids, logprobs = bench.reply(f"p{i}")
        np.testing.assert_allclose(logprobs, reference(i, prompt, ids, 1.0), atol=ATOL)


def test_the_next_turn_starts_from_the_cache_of_its_version_with_the_same_result(
    bench: Bench, reference: Reference
) -> None:
    prompt = random_ids(7, 70)
    bench.ask("first", 1, prompt, max_tokens=20)
    bench.finish()
    ids, _ = bench.reply("first")
    longer = np.concatenate([prompt, np.array(ids, dtype=np.int32), random_ids(8, 5)])

    steps = {}
    for version in (1, 2, 0):
        name = f"next-{version}"
        seq = bench.ask(name, version, longer, seed=3)
        steps[version] = 0
        while not bench.tokens[name]:
            bench.step()
            steps[version] += 1
        bench.finish()
        assert seq.prefilled == len(longer)
        got, logprobs = bench.reply(name)
        np.testing.assert_allclose(logprobs, reference(version, longer, got, 1.0), atol=ATOL)
    assert steps == {
        1: 1,
        2: 6,
        0: 6,
    }  # 95 tokens are six chunks; of the cached ones only the end is left


def test_a_regeneration_of_a_cached_prompt_agrees(bench: Bench, reference: Reference) -> None:
    prompt = random_ids(9, 48)
    for i in range(3):
        bench.ask(f"again{i}", 2, prompt, seed=i)
        bench.finish()
        ids, logprobs = bench.reply(f"again{i}")
        np.testing.assert_allclose(logprobs, reference(2, prompt, ids, 1.0), atol=ATOL)


def test_sessions_that_share_a_prefix_use_the_cache_with_the_same_result(
    bench: Bench, reference: Reference
) -> None:
    """Eight take turns in a cache that would hold five whole ones; each turn branches off from the one before."""
    trunk, passing = random_ids(1, 330), random_ids(2, 7)
    histories = [np.concatenate([trunk, random_ids(10 + s, 9)]) for s in range(8)]
    for turn in range(3):
        for session, history in enumerate(histories):
            name = f"{session}-{turn}"
            prompt = np.concatenate([history, passing])
            seq = bench.ask(name, 1, prompt, seed=session)
            bench.finish()
            ids, logprobs = bench.reply(name)
            np.testing.assert_allclose(logprobs, reference(1, prompt, ids, 1.0), atol=ATOL)
            assert seq.reused_tokens >= (
                len(history) - len(ids) - 6 if turn else len(trunk) if session else 0
            )
            said = np.array(ids, dtype=np.int32)
            histories[session] = np.concatenate(
                [history, said, random_ids(100 * turn + session, 6)]
            )
    assert sum(len(h) for h in histories) > 1.4 * 2048


def test_scores_come_between_steps_and_agree(bench: Bench, reference: Reference) -> None:
    bench.ask("running", 1, random_ids(1, 4), max_tokens=100)
    cases = {"long": (1, 40, 50), "one": (2, 1, 1), "chunk": (0, 16, 1), "cached": (1, 4, 30)}
    for name, (version, p, r) in cases.items():
        bench.core.score(name, version, random_ids(1, p), random_ids(2, r), 0.7)
    bench.finish()
    assert len(bench.tokens["running"]) == 100
    for name, (version, p, r) in cases.items():
        expected = reference(version, random_ids(1, p), random_ids(2, r), 0.7)
        np.testing.assert_allclose(bench.scores[name], expected, atol=ATOL)


def test_versions_swapped_in_the_middle_of_replies_do_not_touch_them(
    bench: Bench, refs: Refs, reference: Reference
) -> None:
    prompt = random_ids(3, 10)
    for version in (0, 1, 2, 3):
        bench.ask(f"v{version}", version, prompt, max_tokens=60, seed=version)
    bench.step()
    for round_ in range(4):
        bench.load(*(refs[v] for v in (0, 1, 2, 3) if v != round_))
    bench.finish()
    for version in (0, 1, 2, 3):
        ids, logprobs = bench.reply(f"v{version}")
        assert len(ids) == 60
        np.testing.assert_allclose(logprobs, reference(version, prompt, ids, 1.0), atol=ATOL)


def test_an_adapter_is_unloaded_when_its_last_reply_has_ended(bench: Bench, refs: Refs) -> None:
    seq = bench.ask("last", 1, random_ids(3, 20), max_tokens=40)
    bench.step()
    bench.load(refs[2])
    for _ in bench.core.unload_unused():
        bench.step()
    assert {v for v, _ in bench.core.model.adapters.loaded_keys} == {1, 2}
    bench.finish()
    assert (bench.core.has_unused, len(seq.sampled_ids)) == (True, 40)
    for _ in bench.core.unload_unused():
        pass
    assert {v for v, _ in bench.core.model.adapters.loaded_keys} == {2}
    assert not bench.core.has_unused


def test_a_cancelled_sequence_frees_its_place_wherever_it_is(bench: Bench) -> None:
    waiting_only = EngineConfig(prefill_chunk=16, max_batch=2, max_loaded_versions=4)
    bench.core = EmbeddedEngine(bench.core.model, waiting_only)
    decoding = bench.ask("decoding", 0, random_ids(0, 4), max_tokens=200)
    bench.step()
    staged = bench.ask("staged", 0, random_ids(1, 200))
    bench.step()
    waiting = bench.ask("waiting", 0, random_ids(2, 4))
    after = bench.ask("after", 0, random_ids(3, 4))
    for seq in (decoding, staged, waiting):
        bench.core.cancel(seq)
    bench.step()
    assert (bench.core.running_count, bench.core.waiting_count) == (1, 0)
    bench.finish()
    assert len(after.sampled_ids) == 8
    assert (waiting.sampled_ids, staged.sampled_ids, len(decoding.sampled_ids)) == ([], [], 2)


def test_no_more_rows_than_max_batch_and_scores_need_none(bench: Bench) -> None:
    for i in range(10):
        bench.ask(f"r{i}", 0, random_ids(i, 2), max_tokens=20)
    bench.core.score("score", 0, random_ids(0, 4), random_ids(1, 4), 1.0)
    for _ in range(5):
        bench.step()
    assert (bench.core.running_count, bench.core.waiting_count) == (6, 4)
    assert "score" in bench.scores
    bench.finish()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "prompt is empty"), ([3, 64], "id 64; the model has ids 0 to 63"), ([-1], "id -1")],
)
def test_ids_that_the_model_does_not_have_are_refused(
    bench: Bench, prompt: list[int], words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        bench.ask("bad", 0, np.array(prompt, dtype=np.int32))


def test_an_adapter_for_another_base_is_refused_and_nothing_changes(
    bench: Bench, tmp_path: Path
) -> None:
    digest = write_adapter(tmp_path)
    before = bench.core.versions
    with pytest.raises(EngineError, match="no linear layer 'nothing'"):
        bench.load(PolicyRef(version=9, path=str(tmp_path), digest=digest))
    assert bench.core.versions == before


@pytest.mark.parametrize(("harm", "words"), [("shape", "lora_A"), ("nan", "not finite")])
def test_weights_that_do_not_fit_are_refused(
    bench: Bench, refs: Refs, tmp_path: Path, harm: str, words: str
) -> None:
    from safetensors.torch import load_file, save_file

    source = Path(str(refs[3].path))
    tensors = load_file(source / "adapter_model.safetensors")
    name = next(n for n in tensors if "lora_A" in n)
    tensors[name] = (
        tensors[name][:, :-1].contiguous() if harm == "shape" else tensors[name] * float("nan")
    )
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    with pytest.raises(EngineError, match=words):
        bench.load(PolicyRef(version=9, path=str(tmp_path), digest=digest_of_folder(tmp_path)))


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=64)
    )


def falcon() -> Any:
    return FalconForCausalLM(
        FalconConfig(**SMALL, num_attention_heads=2, alibi=False, max_position_embeddings=64)
    )


@pytest.mark.parametrize("make", [gpt2, falcon])
def test_adapters_of_linear_layers_of_a_familys_own_kind_are_served(
    make: Callable[[], Any], tiny_engine_config: EngineConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make().save_pretrained(tmp_path / "base")
    tuned = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
        LoraConfig(
            task_type="CAUSAL_LM", r=3, target_modules="all-linear", fan_in_fan_out=make is gpt2
        ),
    ).eval()
    for name, weight in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    tuned.save_pretrained(tmp_path / "tuned")
    bench = Bench(
        EmbeddedModel.load(ModelConfig(path=str(tmp_path / "base"), device="cpu")),
        tiny_engine_config,
    )
    ref = PolicyRef(
        version=1, path=str(tmp_path / "tuned"), digest=digest_of_folder(tmp_path / "tuned")
    )
    bench.load(PolicyRef(version=0, path=None, digest=""), ref)
    prompt, response = random_ids(1, 12), random_ids(2, 9)
    for version in (0, 1):  # in one batch
        bench.core.score(f"s{version}", version, prompt, response, 1.0)
    bench.finish()
    ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
    with torch.no_grad():
        logits = tuned(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1]
    want = torch.log_softmax(logits, -1).gather(-1, ids[len(prompt) :, None])[:, 0]
    np.testing.assert_allclose(bench.scores["s1"], want, atol=1e-4)
    assert np.abs(bench.scores["s0"] - bench.scores["s1"]).max() > 0.01


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}


def test_models_that_cannot_be_served_are_refused_with_the_reason() -> None:
    attention = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    mistral = MistralForCausalLM(
        MistralConfig(**SMALL, **attention, sliding_window=16, max_position_embeddings=64)
    )
    with pytest.raises(ModelError, match=r"engine\.max_context to 16"):
        EmbeddedModel(mistral, name="mistral")
    with pytest.raises(ModelError, match="another kind"):
        EmbeddedModel(MambaForCausalLM(MambaConfig(**SMALL)), name="mamba")
    with pytest.raises(ModelError, match="no such folder"):
        EmbeddedModel.load(ModelConfig(path="/nowhere/at/all"))


def test_a_sliding_window_beyond_the_context_and_learned_positions_are_served() -> None:
    attention = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    mistral = MistralForCausalLM(
        MistralConfig(**SMALL, **attention, sliding_window=16, max_position_embeddings=64)
    )
    assert EmbeddedModel(mistral, name="mistral", max_context=16).context_length == 16
    gpt2 = GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=64)
    )
    assert EmbeddedModel(gpt2, name="gpt2").layout.heads == 2
