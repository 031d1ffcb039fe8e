"""Adapters of the service as local engines load them: names, shapes and settings are checked before they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file
from tests.tinker.archive_server import ArchiveServer, make_archive, make_files, make_matrices

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines.adapter_file import check_fits_base, read_adapter
from openclaw_rl.errors import EngineError
from openclaw_rl.tinker import adapter_download
from openclaw_rl.tinker.adapter_download import (
    ATTEMPTS,
    LocalBase,
    download_adapter,
    to_peft_layout,
)
from openclaw_rl.types import PolicyRef

BASE = LocalBase(name="org/base", folder=None)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_download, "RETRY_SECONDS", 0.0)


@pytest.fixture
def base(tmp_path: Path) -> LocalBase:
    folder = tmp_path / "base"
    folder.mkdir()
    weights = make_matrices("model.layers.0.self_attn.q_proj")
    b, a = weights.popitem()[1], weights.popitem()[1]
    save_file({"model.layers.0.self_attn.q_proj.weight": b @ a}, folder / "model.safetensors")
    return LocalBase(name="org/base", folder=folder)


def test_downloaded_files_have_the_peft_layout(base: LocalBase, tmp_path: Path) -> None:
    given = make_files()
    with ArchiveServer(make_archive(given | {"checkpoint_complete": b""})) as server:
        files = download_adapter(f"{server.url}/one", base)
    folder = tmp_path / "000001-a"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    loaded = read_adapter(PolicyRef(version=1, path=str(folder), digest=digest_of_folder(folder)))
    check_fits_base(loaded, str(base.folder))
    assert loaded.scale("model.layers.0.self_attn.q_proj") == 32 / 8
    assert files["adapter_model.safetensors"] == given["adapter_model.safetensors"]
    settings = json.loads(files["adapter_config.json"])
    assert settings["target_modules"] == ["q_proj"], "vLLM and PEFT want them named"
    assert (settings["base_model_name_or_path"], settings["r"], settings["lora_alpha"]) == (
        "org/base",
        8,
        32,
    )


def test_an_interrupted_download_is_repeated() -> None:
    archive = make_archive(make_files())
    with ArchiveServer(archive, broken=ATTEMPTS - 1) as server:
        assert download_adapter(server.url, BASE).keys() == make_files().keys()
        assert len(server.paths) == ATTEMPTS
    with ArchiveServer(archive, broken=ATTEMPTS) as server, pytest.raises(Exception, match=r"."):
        download_adapter(server.url, BASE)


@pytest.mark.parametrize(
    ("matrices", "words"),
    [
        (
            make_matrices("base_model.model.model.layers.0.attn.wq"),
            "adapts model.layers.0.attn.wq, a name that",
        ),
        (
            make_matrices("base_model.model.model.unembed_tokens"),
            "Set engine.backend to tinker, which serves it",
        ),
        (make_matrices("model.layers.0.self_attn.q_proj"), "a name that PEFT does not have"),
        (make_matrices(into=24), r"q_proj has shape \[32, 24\], expected \[32, 16\]"),
        (make_matrices(rank=4), r"expected \[8, in\] and \[out, 8\]"),
        (dict([make_matrices().popitem()]), r"expected \[8, in\] and \[out, 8\]"),
        ({}, "has no matrices"),
    ],
)
def test_an_adapter_that_no_engine_could_serve_is_refused(
    base: LocalBase, matrices: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        to_peft_layout(make_files(matrices), base)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        make_files() | {"adapter_config.json": b"{}"},
        make_files() | {"adapter_config.json": b"no json"},
        make_files() | {"adapter_model.safetensors": b"\x08\0\0\0\0\0\0\0no json!"},
        make_files() | {"adapter_model.safetensors": b""},
    ],
)
def test_unreadable_files_are_reported_in_one_line(files: dict[str, bytes]) -> None:
    with pytest.raises(EngineError, match="returned cannot be read") as caught:
        to_peft_layout(files, BASE)
    assert "\n" not in str(caught.value)


def test_an_archive_without_the_weights_is_refused() -> None:
    files = make_files()
    del files["adapter_model.safetensors"]
    with (
        ArchiveServer(make_archive(files)) as server,
        pytest.raises(EngineError, match=r"has no adapter_model.safetensors"),
    ):
        download_adapter(server.url, BASE)
