from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.common.policy_digest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    digest_of_folder,
    find_damage,
    hash_folder,
)
from openclaw_rl.doctor import random_adapter
from openclaw_rl.engines import adapter_file
from openclaw_rl.errors import EngineError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import PolicyRef


def ref(folder: Path) -> PolicyRef:
    return PolicyRef(version=4, path=str(folder), digest=digest_of_folder(folder))


def test_an_adapter_of_the_double_is_a_real_one(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    digest = write_adapter(tmp_path, weight=2.5)
    file = adapter_file.read_adapter(PolicyRef(version=1, path=str(tmp_path), digest=digest))
    assert (list(file.pairs), file.rank, file.scale("nothing")) == (["nothing"], 1, 1.0)
    by_the_library = load_file(tmp_path / ADAPTER_WEIGHTS)
    assert {n: t.tolist() for n, t in by_the_library.items()} == {
        f"base_model.model.nothing.lora_{side}.weight": [[2.5]] for side in "AB"
    }


def test_a_pipe_instead_of_a_file_is_damage_and_is_not_read(tmp_path: Path) -> None:
    write_adapter(tmp_path)
    digest, files = hash_folder(tmp_path)
    assert find_damage(tmp_path, digest, files) is None
    (tmp_path / ADAPTER_WEIGHTS).unlink()
    os.mkfifo(tmp_path / ADAPTER_WEIGHTS)
    for known in (files, {}):
        assert str(find_damage(tmp_path, digest, known)).startswith(f"{ADAPTER_WEIGHTS} is a pipe")


def test_the_digest_depends_on_every_byte_and_on_names(tmp_path: Path) -> None:
    seen = {write_adapter(tmp_path / "a"), write_adapter(tmp_path / "b", weight=1.0)}
    (tmp_path / "a" / ADAPTER_CONFIG).write_text("{}")
    seen.add(digest_of_folder(tmp_path / "a"))
    assert len(seen) == 3
    (tmp_path / "a" / "optimizer.pt").write_bytes(b"not a weight")
    assert digest_of_folder(tmp_path / "a") in seen


def _settings(**change: object) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        path = folder / ADAPTER_CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return harm


def _renamed(old: bytes, new: bytes) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        path = folder / ADAPTER_WEIGHTS
        raw = path.read_bytes()
        assert old in raw
        assert len(old) == len(new)
        path.write_bytes(raw.replace(old, new))

    return harm


def _cut(folder: Path) -> None:
    path = folder / ADAPTER_WEIGHTS
    path.write_bytes(path.read_bytes()[:-3])


def _no_json(folder: Path) -> None:
    (folder / ADAPTER_CONFIG).write_text("[1]")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_settings(peft_type="IA3"), "expected 'LORA'"),
        (_settings(use_dora=True), "not DoRA"),
        (_settings(modules_to_save=["lm_head"]), "modules_to_save"),
        (_no_json, "JSON object"),
        (_cut, "truncated"),
        (_renamed(b"lora_B", b"lora_C"), "not a LoRA matrix"),
        (_renamed(b"nothing.lora_B", b"noting_.lora_B"), "expected lora_A and lora_B"),
        (_renamed(b'"shape": [1, 1]', b'"shape": [1   ]'), "do not match"),
        (_renamed(b'"dtype": "F32"', b'"dtyqe": "F32"'), "expected a safetensors file"),
    ],
)
def test_invalid_adapters_are_explained(
    tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    write_adapter(tmp_path)
    harm(tmp_path)
    with pytest.raises(EngineError, match=words) as caught:
        adapter_file.read_adapter(ref(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_an_adapter_of_another_base_names_the_module_and_both_shapes(tmp_path: Path) -> None:
    base = ModelFiles.from_path("starter")
    ref = random_adapter.write_random_adapter(base.folder, tmp_path / "own", version=1, rank=2)
    assert ref is not None
    file = adapter_file.read_adapter(ref)
    adapter_file.check_fits_base(file, str(base.folder))
    adapter_file.check_fits_base(file, str(tmp_path / "not here"))
    module, (a, b) = next(iter(file.pairs.items()))
    narrow = replace(file, pairs={module: (replace(a, shape=(2, 48)), b)})
    expected = (
        rf"{module} has \[out, in\] \[{b.shape[0]}, 48\], expected \[{b.shape[0]}, {a.shape[1]}\]"
    )
    with pytest.raises(EngineError, match=expected):
        adapter_file.check_fits_base(narrow, str(base.folder))
    deep = replace(file, pairs={re.sub(r"layers\.\d+", "layers.999", module): (a, b)})
    with pytest.raises(EngineError, match=r"layers\.999\..* no such layer"):
        adapter_file.check_fits_base(deep, str(base.folder))
    adapter_file.check_fits_base(
        replace(file, pairs={"lm_head": (a, b)}), str(base.folder)
    )  # it may be tied
