"""Versions of the starter, and of bases that are made from it, in homes of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tests.model_identity import identity_of
from transformers import AutoModelForCausalLM

from openclaw_rl.common.assets import STARTER
from openclaw_rl.common.policy_digest import ADAPTER_WEIGHTS, hash_folder
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_names
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.types import Policy, PolicyState

STARTER_FOLDER = ModelFiles.from_path(STARTER).folder


def load_model(folder: Path | str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(5, 25)[None]).logits[0]


def write_adapter(
    base: Path, folder: Path, *, dtype: torch.dtype = torch.float32, **lora: Any
) -> None:
    """Write an adapter with random weights, as PEFT does."""
    options = {
        "r": 8,
        "lora_alpha": 24,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
    } | lora
    torch.manual_seed(0)
    model = get_peft_model(load_model(base), LoraConfig(**options))
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.05)
    model.save_pretrained(folder, save_embedding_layers=False)
    weights = {name: value.to(dtype) for name, value in load_file(folder / ADAPTER_WEIGHTS).items()}
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def copy_starter(folder: Path, **save: Any) -> Path:
    """Write the starter again with options of `save_pretrained`, with its tokenizer and template."""
    shutil.copytree(
        STARTER_FOLDER, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json")
    )
    load_model(STARTER_FOLDER).save_pretrained(folder, **save)
    return folder


def make_policy(base: Path, folder: Path, *, version: int = 1) -> Policy:
    digest, files = hash_folder(folder)
    return Policy(
        version=version,
        parent=version - 1,
        state=PolicyState.LIVE,
        path=str(folder),
        digest=digest,
        files=files,
        base=str(base),
        identity=identity_of(ModelFiles.from_path(str(base))),
        created_at=float(version),
    )


MakeHome = Callable[..., Path]


@pytest.fixture
def make_home(tmp_path: Path) -> MakeHome:
    """Makes a home whose head, version 1, is what `write` writes into its folder."""

    def make(base: Path, write: Callable[[Path], None]) -> Path:
        config = from_flat({"home": str(tmp_path / "home")})
        prepare_home(config)
        folder = config.policies_dir / "1"
        write(folder)
        policy = make_policy(base, folder)
        with Store.open(config.store_path) as store, store.write() as conn:
            policies.ensure_root(conn, base=str(base), identity=policy.identity, at=0.0)
            policies.insert_version(conn, policy, (), PolicyState.LIVE)
            policy_names.move_head(conn, "default", 1)
        return config.home_dir

    return make


@pytest.fixture
def home(make_home: MakeHome) -> Path:
    """A home with an adapter of the starter."""
    return make_home(STARTER_FOLDER, lambda folder: write_adapter(STARTER_FOLDER, folder))
