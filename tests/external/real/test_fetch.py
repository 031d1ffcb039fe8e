"""The real download: `model.path: smollm2` becomes a folder, and the same one each time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.model_identity import identity_of
from transformers import AutoTokenizer

from openclaw_rl.common import packaged_models
from openclaw_rl.common.packaged_models import SMOLLM2
from openclaw_rl.render.model_folder import ModelFiles

WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
"""Of model.safetensors. Homes that learned from SmolLM2 belong to these weights: other ones need another name."""


def test_the_downloaded_model_has_the_expected_weights_and_nothing_else_is_left(
    fetched: Path,
) -> None:
    weights = (fetched / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS_SHA256
    assert sorted(path.name for path in fetched.parent.iterdir()) == [
        f".{fetched.name}.lock",
        fetched.name,
    ]
    config = json.loads((fetched / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (
        30,
        576,
        49152,
    )


def test_the_name_means_the_fetched_folder(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_models, "CACHE", fetched.parent)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert ModelFiles.from_path("smollm2").folder == fetched


def test_the_identity_is_that_of_the_folder_of_this_machine(fetched: Path, model: str) -> None:
    """Two conversions, if this machine had the model before: its homes fit a model that is fetched again."""
    assert identity_of(ModelFiles.from_path(str(fetched))) == identity_of(
        ModelFiles.from_path(model)
    )
    assert SMOLLM2.folder.is_dir()


def test_the_tokenizer_is_that_of_a_chat_model(fetched: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fetched)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert ModelFiles.from_path(str(fetched)).eos_ids == (tokenizer.eos_token_id,)
