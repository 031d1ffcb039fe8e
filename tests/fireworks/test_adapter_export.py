"""A version in the layout of Fireworks: PEFT reads it as the same model; what the service does not take is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load, load_file, save_file
from transformers import AutoModelForCausalLM

from openclaw_rl.common.assets import STARTER
from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines.adapter_file import AdapterFile, read_adapter
from openclaw_rl.errors import OpenClawError
from openclaw_rl.fireworks.adapter_export import export_adapter, write_export
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.types import PolicyRef

FOLDER = str(ModelFiles.from_path(STARTER).folder)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def write_version(folder: Path, *, dtype: torch.dtype = torch.float32, **lora: Any) -> AdapterFile:
    """Write an adapter of the starter with random weights, as PEFT does."""
    torch.manual_seed(0)
    options = {"r": 8, "lora_alpha": 24, "target_modules": TARGETS, "task_type": "CAUSAL_LM"} | lora
    model = get_peft_model(base(), LoraConfig(**options))
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.05)
    model.save_pretrained(folder)
    weights = {
        name: value.to(dtype)
        for name, value in load_file(folder / "adapter_model.safetensors").items()
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return read_adapter(PolicyRef(version=4, path=str(folder), digest=digest_of_folder(folder)))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(5, 25)[None]).logits[0]


@pytest.mark.parametrize(
    ("dtype", "lora"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float32, {"use_rslora": True}),
        (torch.float32, {"alpha_pattern": {"q_proj": 80}}),
    ],
)
def test_peft_reads_the_export_as_the_same_model(
    tmp_path: Path, dtype: torch.dtype, lora: dict[str, Any]
) -> None:
    """Whatever scale the version has: in the export, alpha is the rank, so that the field changes nothing."""
    file = write_version(tmp_path / "version", dtype=dtype, **lora)
    export = export_adapter(file, base=FOLDER, template="{{ messages }}")
    write_export(export, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "fireworks.json",
    ]
    config = json.loads(export.files["adapter_config.json"])
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (8, 8, sorted(TARGETS))
    template = json.loads(export.files["fireworks.json"])["conversation_config"]
    assert template == {"style": "jinja", "args": {"template": "{{ messages }}"}}
    tensors = load(export.files["adapter_model.safetensors"])
    assert tensors.keys() == load_file(tmp_path / "version" / "adapter_model.safetensors").keys()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    theirs = logits(PeftModel.from_pretrained(base(), tmp_path / "out"))
    ours = logits(PeftModel.from_pretrained(base(), tmp_path / "version"))
    torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-5)
    assert (ours - logits(base())).abs().max() > 0.01, "the adapter changes something"
    assert export.files == export_adapter(file, base=FOLDER, template="{{ messages }}").files, (
        "equal bytes"
    )


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"r": 2}, "has rank 2, and Fireworks takes 4 to 64"),
        ({"r": 65}, "has rank 65, and Fireworks takes 4 to 64"),
        ({"rank_pattern": {"q_proj": 16}}, r"has modules of ranks \[8, 16\]"),
    ],
)
def test_an_adapter_that_the_service_does_not_take_is_refused(
    tmp_path: Path, lora: dict[str, Any], words: str
) -> None:
    file = write_version(tmp_path / "version", **lora)
    with pytest.raises(OpenClawError, match=f"version 4 {words}"):
        export_adapter(file, base=FOLDER, template=None)


def test_a_module_that_the_service_does_not_adapt_is_named(tmp_path: Path) -> None:
    file = write_version(tmp_path / "version")
    pair = next(iter(file.pairs.values()))
    for name in ("lm_head", "model.layers.0.self_attn.my_q_proj"):
        with pytest.raises(
            OpenClawError, match=f"version 4 adapts {name}, and Fireworks adapts only q_proj"
        ):
            export_adapter(replace(file, pairs={name: pair}), base=FOLDER, template=None)


def test_an_export_does_not_overwrite_files(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    export = export_adapter(write_version(tmp_path / "version"), base=FOLDER, template=None)
    with pytest.raises(OpenClawError, match="is not empty, and nothing is overwritten"):
        write_export(export, tmp_path)
