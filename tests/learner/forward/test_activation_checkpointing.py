"""As many layers keep their activations as fit into memory; the result is the same to the bit."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.learner.forward.test_exact_gradients import SHAPE
from torch.profiler import ProfilerActivity, profile
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from openclaw_rl.errors import ConfigError, TooLarge
from openclaw_rl.learner.forward import activation_checkpointing
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.model import oom
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

Draw = Callable[..., list[Sample]]
LAYERS = 8
WIDE: dict[str, Any] = {
    "method": "binary",
    "max_gap": 99.0,
    "max_batch_gap": 99.0,
    "max_step_kl": 1e9,
}
OPT: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("deep")
    Qwen3ForCausalLM(
        Qwen3Config(**SHAPE | {"num_hidden_layers": LAYERS}, tie_word_embeddings=True)
    ).save_pretrained(folder)
    return str(folder)


def made(path: str, **settings: Any) -> LocalTrainer:
    train = train_settings(WIDE | settings)
    return LocalTrainer(path, make_method(train), train)


def long(tokens: int = 400, n: int = 0) -> list[Sample]:
    """One sample of so many tokens, a quarter of them its reply."""
    rng = np.random.default_rng(n)
    prompt, reply = (
        rng.integers(0, 48, n).astype(np.int32) for n in (tokens - tokens // 4, tokens // 4)
    )
    fixed = {"mask": np.ones(len(reply), bool), "logprobs": np.full(len(reply), -4.0, np.float32)}
    return [Sample(turn=f"t{n}", agent="a", prompt_ids=prompt, response_ids=reply, **fixed, temperature=1.0, version=0,
                   reward=1.0)]  # fmt: skip


def grant(
    monkeypatch: pytest.MonkeyPatch, trainer: LocalTrainer, layers: float, tokens: int
) -> None:
    """So much memory is free that passes may take what so many layers keep of so many tokens, and gradients."""
    known = trainer._runner._checkpointing
    amount = (
        layers * known._bytes_per_token * tokens + known._gradient_bytes
    ) / activation_checkpointing.FREE_SHARE_SHARED
    monkeypatch.setattr(activation_checkpointing, "available_memory", lambda _: int(amount))


def counted(trainer: LocalTrainer) -> list[int]:
    """How often each layer's attention is computed with gradients, from now on."""
    calls = [0] * LAYERS
    for n, layer in enumerate(trainer.causal.get_decoder().layers):

        def count(*_: object, n: int = n) -> None:
            calls[n] += torch.is_grad_enabled()

        layer.self_attn.register_forward_hook(count)
    return calls


@pytest.fixture(scope="module")
def plain_digest(deep: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the policy after a step on `long()` in which all layers keep their activations."""
    return (
        made(deep, checkpointing=False)
        .step(long(), str(tmp_path_factory.mktemp("plain") / "policy"))
        .digest
    )


@pytest.mark.parametrize(("layers", "again"), [(8.0, 0), (7.9, 3), (3.1, 7), (2.9, 8), (0.0, 8)])
def test_the_last_layers_keep_activations_within_memory(
    deep: str,
    plain_digest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: float,
    again: int,
) -> None:
    """Two layers' worth is left for the one that is computed again."""
    thrifty = made(deep)
    fed = len(long()[0].prompt_ids) + len(long()[0].response_ids) - 1
    grant(monkeypatch, thrifty, layers, fed)
    calls = counted(thrifty)
    assert thrifty.step(long(), str(tmp_path / "policy")).digest == plain_digest, "to the bit"
    assert calls == [2] * again + [1] * (LAYERS - again)


def test_the_setting_selects_all_layers_or_none(
    deep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = made(deep, checkpointing=False)
    grant(monkeypatch, none, 0, 0)
    calls = counted(none)
    none.step(long(), str(tmp_path / "none"))
    assert calls == [1] * LAYERS
    every = made(deep, checkpointing=True)
    calls = counted(every)
    every.step(long(), str(tmp_path / "all"))
    assert calls == [2] * LAYERS


def peak(trainer: LocalTrainer, tmp_path: Path, batch: list[Sample]) -> float:
    """Bytes that a step holds at most, by torch's own count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        assert trainer.step(batch, str(tmp_path / "policy")).folder is not None
    held = most = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return float(most)


def test_a_step_stays_within_the_measured_memory(
    deep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured on a few tokens holds for many: all layers within 10%, a part of them within their share."""
    tokens = 1000
    batch, every = long(tokens), made(deep)
    inside = every._runner._checkpointing._bytes_per_token * tokens
    whole, least = (
        peak(every, tmp_path / "0", batch),
        peak(made(deep, checkpointing=True), tmp_path / "1", batch),
    )
    assert least < 0.4 * whole, (least, whole)
    assert whole == pytest.approx(LAYERS * inside, rel=0.25), "what the layers keep is most of it"
    grant(monkeypatch, some := made(deep), 5.5, tokens)
    assert peak(some, tmp_path / "some", batch) <= 1.05 * 5.5 * inside


@pytest.mark.parametrize("family", ["qwen3-bfloat16", "gemma", "opt"])
def test_activation_bytes_per_token_are_measured(tmp_path: Path, family: str) -> None:
    models: dict[str, Callable[[], Any]] = {
        "qwen3-bfloat16": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)).to(torch.bfloat16),
        "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SHAPE)),
        "opt": lambda: OPTForCausalLM(
            OPTConfig(**OPT, num_hidden_layers=2, word_embed_proj_dim=32)
        ),
    }
    models[family]().save_pretrained(tmp_path)
    passes = made(str(tmp_path))._runner
    ids = (np.arange(301) % 48).astype(np.int32)
    kept = activation_checkpointing._saved_bytes(
        lambda: passes.hidden_states(
            [TokenSequence(prompt_ids=ids[:-1], response_ids=ids[-1:], temperature=1.0)]
        )
    )
    weights = sum(p.nbytes for p in passes._model.parameters())
    expected = 300 * 2 * passes._checkpointing._bytes_per_token
    assert expected == pytest.approx(kept, abs=weights + 0.05 * kept)
    assert expected > 10 * weights / 7, (
        "which is far more than the weights that a backward pass keeps, too"
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"weights": "full", "learning_rate": 1e-5, "offload_optimizer": True}],
    ids=["lora", "full-offloaded"],
)
def test_a_deleted_trainer_leaves_no_tensors(
    deep: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """What a graph or a hook holds, and what holds it, are found by no garbage collector."""

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    made(deep, **settings).step(
        long(40), str(tmp_path / "0")
    )  # what the first of all leaves to the next
    before = tensors()
    made(deep, **settings).step(long(40), str(tmp_path / "1"))
    assert tensors() == before


def test_dropout_of_the_base_stays_off(tmp_path: Path) -> None:
    """Its layers ask the flag for it that transformers asks whether to compute again."""
    torch.manual_seed(0)
    config = OPTConfig(
        **OPT, num_hidden_layers=2, word_embed_proj_dim=32, dropout=0.5, init_std=0.3
    )
    OPTForCausalLM(config).save_pretrained(tmp_path / "model")
    path, batch = str(tmp_path / "model"), long(60)
    plain, thrifty = (
        made(path, checkpointing=wanted).step(batch, str(tmp_path / f"{wanted}"))
        for wanted in (0, 1)
    )
    assert plain.digest == thrifty.digest


def fails_above(trainer: LocalTrainer, kept: int, tokens: int) -> None:
    """From now on, a pass in which more than `kept` layers keep their inside, or of more tokens, does not fit."""

    def allocate(decoder: torch.nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        holding = sum(
            not layer.gradient_checkpointing for layer in trainer.causal.get_decoder().layers
        )
        if torch.is_grad_enabled() and (holding > kept or given["input_ids"].numel() > tokens):
            raise torch.OutOfMemoryError("CUDA out of memory")

    trainer.causal.get_decoder().register_forward_pre_hook(allocate, with_kwargs=True)


def test_after_an_out_of_memory_error_fewer_layers_keep_activations(
    deep: str,
    plain_digest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tight = made(deep)
    grant(monkeypatch, tight, 9, 399)
    fails_above(tight, kept=2, tokens=400)
    calls = counted(tight)
    with caplog.at_level(logging.INFO, "openclaw_rl.learner"):
        digest = tight.step(long(), str(tmp_path / "policy")).digest
    assert digest == plain_digest, "nothing of the first attempts is in the last"
    assert caplog.text.count("Retrying with more layers recomputed in the backward pass") == 1
    assert "6 of 8 layers are recomputed in a pass of 399 tokens" in caplog.text
    assert calls == [2] * 6 + [1] * 2
    caplog.clear()
    tight.step(long(), str(tmp_path / "on"))
    assert not caplog.text, "later steps keep the limit"


def test_passes_shrink_until_the_step_fails(
    deep: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = [sample for n in range(4) for sample in long(100, n)]
    tight = made(deep, micro_tokens=512)
    fails_above(tight, kept=LAYERS, tokens=256)
    assert tight.step(batch, str(tmp_path / "policy")).folder is not None
    words = [record.message for record in caplog.records if "Retrying" in record.message]
    assert ["more layers" in line for line in words] == [True] * (len(words) - 1) + [False]
    assert "passes of 256 tokens" in words[-1]
    small = made(deep)
    fails_above(small, kept=LAYERS, tokens=3)
    before = small._runner.memory_limits
    with pytest.raises(TooLarge, match="does not fit into memory"):
        small.step(long(), str(tmp_path / "none"))
    assert small._runner.memory_limits == before, "what is left of the batch may fit as it was"


CHILD = """
import os, resource, sys
import psutil
from tests.learner.forward.test_activation_checkpointing import long, made

for name, wanted in (("none", False), ("auto", None)):
    if os.fork():
        os.wait()
        continue
    trainer = made(sys.argv[1], checkpointing=wanted, max_gap=99.0)
    trainer.step(long(40), f"{sys.argv[2]}/{name}-first")
    limit = psutil.Process().memory_info().vms + 80 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        print(name, trainer.step(long(1600), f"{sys.argv[2]}/{name}").folder, flush=True)
    except Exception as error:
        print(name, type(error).__name__, error, flush=True)
    os._exit(0)
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
def test_a_real_memory_limit_is_respected(tmp_path: Path) -> None:
    """The system grants 80 MiB more; a step that keeps all of eight layers takes 140, one that keeps none 35.

    What is granted are addresses. With malloc as it comes, holes between tensors would take as many again, by chance.
    """
    alone = {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }  # each tensor has addresses of its own
    shape = SHAPE | {
        "num_hidden_layers": 8,
        "hidden_size": 128,
        "intermediate_size": 384,
        "head_dim": 32,
    }
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "model"), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | alone
    )
    none, auto = done.stdout.splitlines()
    assert none.startswith(
        "none TurnOutOfMemory a step with one row per pass does not fit into memory"
    ), done.stderr[-2000:]
    assert auto == f"auto {tmp_path / 'auto'}", done.stderr[-2000:]


def test_large_layers_return_freed_memory(
    deep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(
        activation_checkpointing, "trim_malloc", lambda: given.append(torch.is_grad_enabled())
    )
    trainer = made(deep, checkpointing=True)
    trainer.step(long(), str(tmp_path / "small"))
    assert not given
    monkeypatch.setattr(
        activation_checkpointing,
        "TRIM_BYTES",
        trainer._runner._checkpointing._bytes_per_token * 399,
    )
    trainer.step(long(), str(tmp_path / "large"))
    assert given.count(True) == 3 * LAYERS, (
        "behind a layer, and when it is computed in the two passes"
    )
    assert given.count(False) == 2 * LAYERS, "the base before, the policy after"


@pytest.mark.skipif(oom._MALLOC_TRIM is None, reason="glibc's malloc")
def test_fragmented_memory_is_returned_to_the_system() -> None:
    del (whole := [torch.ones(2**22)])[
        0
    ]  # 16 MiB: malloc takes smaller ones from its heap from now on
    tensors = [torch.ones(2**17) for _ in range(200)]
    kept, freed = tensors[::2], len(tensors[1::2]) * 2**19
    del tensors, whole
    before = psutil.Process().memory_info().rss
    oom.trim_malloc()
    assert before - psutil.Process().memory_info().rss > 0.7 * freed
    assert all(bool((tensor == 1).all()) for tensor in kept)


@pytest.mark.parametrize(
    ("others", "share"),
    [
        (0, activation_checkpointing.FREE_SHARE_ALONE),
        (1, activation_checkpointing.FREE_SHARE_ALONE),
        (9, activation_checkpointing.FREE_SHARE_SHARED),
    ],
)
def test_an_engine_on_the_same_gpu_keeps_its_share_of_memory(
    deep: str, monkeypatch: pytest.MonkeyPatch, others: int, share: float
) -> None:
    """24 GiB, of which the trainer holds 4, and other processes so many."""
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: ((20 - others) * gib, 24 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 4 * gib)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 3 * gib)
    gpu, known = torch.device("cuda"), made(deep)._runner._checkpointing
    free = (21 - others) * gib
    assert oom.available_memory(gpu) == free
    known._device, known._bytes_per_token = (
        gpu,
        gib / 10_000,
    )  # of a token, so that the gradients owed are nothing beside it
    limit = share * free / gib * 10_000  # tokens times layers
    assert known._layers_to_keep(int(limit / 6.5)) == 6 - activation_checkpointing.RESERVED_LAYERS


def test_layers_that_cannot_be_recomputed_are_refused(
    deep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Qwen3ForCausalLM, "supports_gradient_checkpointing", False)
    with pytest.raises(
        ConfigError, match="true: transformers cannot recompute the layers of a qwen3 model"
    ):
        made(deep, checkpointing=True)
    assert not made(deep)._runner._checkpointing.has_kept_activations


def test_the_memory_limit_of_a_container_counts(tmp_path: Path) -> None:
    """The limits of control groups, on the way from the process's own to the root."""
    own = tmp_path / "cgroup"
    own.write_text("0::/user/me\n1:cpu:/\n")

    def group(folder: str, **files: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(text)

    group(
        "fs/user",
        memory__max="5000\n",
        memory__current="3000\n",
        memory__stat="anon 7\ninactive_file 500\n",
    )
    group("fs/user/me", memory__max="max\n", memory__current="100\n")
    assert list(oom._cgroup_free_bytes(tmp_path / "fs", own)) == [2500]
    assert list(oom._cgroup_free_bytes(tmp_path / "none", tmp_path / "nowhere")) == []
    here = oom.available_memory(torch.device("cpu"))
    assert 2**20 < here < 2**60
