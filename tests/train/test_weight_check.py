"""Weights of another program that no engine can load are refused before they are a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train.external_world import BASE, World

from openclaw_rl.common.policy_digest import hash_folder
from openclaw_rl.doctor.random_adapter import write_random_adapter
from openclaw_rl.errors import ModelError
from openclaw_rl.other_trainers.batch_stream import BatchStream
from openclaw_rl.other_trainers.weight_check import check_weight_files, check_weights
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import PolicyRef

Spoil = Callable[[Path], object]
RANK = 4
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def write_adapter(folder: Path) -> Path:
    assert write_random_adapter(BASE, folder, version=1, rank=RANK) is not None
    return folder / "adapter_model.safetensors"


def check(folder: Path, *, max_rank: int | None = RANK) -> None:
    check_weight_files(folder, max_rank)
    ref = PolicyRef(version=1, path=str(folder), digest=hash_folder(folder)[0])
    check_weights(ref, base=str(BASE), max_rank=max_rank)


def set_last(file: Path, value: float, dtype: torch.dtype = torch.float32) -> None:
    """Set the last number of each tensor."""
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    for tensor in tensors.values():
        tensor.view(-1)[-1] = value
    save_file(tensors, file)


def widen(file: Path) -> None:
    """Make an adapter of a base with one more input."""
    tensors = {
        name: torch.nn.functional.pad(t, (0, "lora_A" in name))
        for name, t in load_file(file).items()
    }
    save_file(tensors, file)


def reshape(file: Path) -> None:
    """Write a header whose shapes are of other sizes than the data."""
    length = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + length])
    for entry in header.values():
        if "shape" in entry:
            entry["shape"][1] += "lora_A" in str(entry)
            entry["data_offsets"] = [0, 8]
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))


def configure(file: Path, **values: object) -> None:
    config = file.with_name("adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


def nest(file: Path) -> None:
    """Write the names that a model has which peft wrapped twice."""
    tensors = {name.replace("base_model.model.", "base_model.model.base_model.model.", 1): tensor
               for name, tensor in load_file(file).items()}  # fmt: skip
    save_file(tensors, file)


WRONG_ADAPTERS: list[tuple[Spoil, str]] = [
    (lambda file: file.write_bytes(b"x" * 100), "expected a safetensors file"),
    (lambda file: file.write_bytes(file.read_bytes()[:-1000]), "truncated"),
    (reshape, "has 8 bytes, expected"),
    (lambda file: set_last(file, float("nan")), "values that are not finite"),
    (lambda file: set_last(file, float("-inf"), torch.bfloat16), "values that are not finite"),
    (widen, "does not fit the base"),
    (nest, "peft wrapped the model twice"),
    (
        lambda file: save_file({n: t.to(torch.int8) for n, t in load_file(file).items()}, file),
        "has the type I8",
    ),
    (lambda file: configure(file, r=RANK - 1), f"the adapter has rank {RANK};"),
    (lambda file: configure(file, lora_alpha="many"), "no lora_alpha"),
    (lambda file: configure(file, use_dora=True), "not DoRA"),
]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_valid_adapter_is_accepted(tmp_path: Path, dtype: torch.dtype) -> None:
    set_last(write_adapter(tmp_path / "1"), torch.finfo(torch.float16).max, dtype)
    check(tmp_path / "1")


@pytest.mark.parametrize(
    ("spoil", "named"), WRONG_ADAPTERS, ids=[words for _, words in WRONG_ADAPTERS]
)
def test_an_adapter_that_no_engine_loads_is_refused_in_one_line(
    tmp_path: Path, spoil: Spoil, named: str
) -> None:
    spoil(write_adapter(tmp_path / "1"))
    with pytest.raises(ModelError, match=named) as caught:
        check(tmp_path / "1", max_rank=RANK - 1 if "rank" in named else RANK)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", TYPES)
def test_full_weights_are_checked_completely(tmp_path: Path, dtype: torch.dtype) -> None:
    """A table of integers beside them is left alone."""
    file = tmp_path / "model.safetensors"
    weights = {"a": torch.ones(3, 5, dtype=dtype), "ids": torch.full((3,), -1)}
    save_file(weights, file)
    check(tmp_path, max_rank=None)
    weights["a"][-1, -1] = torch.nan
    save_file(weights, file)
    with pytest.raises(ModelError, match="the weights of a have values that are not finite"):
        check(tmp_path, max_rank=None)
    file.write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.safetensors is empty"):
        check(tmp_path, max_rank=None)


def test_weights_beyond_the_first_block_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.other_trainers.weight_check._BLOCK_BYTES", 64)
    save_file(
        {"a": torch.from_numpy(np.append(np.ones(999), np.inf))}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ModelError, match="not finite"):
        check(tmp_path, max_rank=None)


def test_weights_that_are_not_finite_do_not_become_the_head(
    world: World, fill: Callable[..., list[str]]
) -> None:
    """They would be the start of every further step, while an older version answers."""
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        Path(batch.folder).rmdir()
        set_last(write_adapter(Path(batch.folder)), float("nan"))
        assert not batch.acknowledge({"loss/total": 0.5})
        assert "not finite" in str(batch.rejection)
        stream.current_batch().refuse("enough")
    with world.store.read() as conn:
        assert policies.head(conn).version == 0
    assert world.used() == {}
