"""Merged weights are those of PEFT, for every layout of a base; what cannot be merged is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.model_export.conftest import (
    STARTER_FOLDER,
    copy_starter,
    load_model,
    logits_of,
    make_policy,
    write_adapter,
)
from transformers import GPT2Config, GPT2LMHeadModel

from openclaw_rl.engines.adapter_file import read_adapter
from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.learner.model.full import FullWeights
from openclaw_rl.model_export import shard_writer
from openclaw_rl.model_export.adapter_updates import plan_updates
from openclaw_rl.model_export.base_weights import read_shards
from openclaw_rl.model_export.logprob_check import compare_models
from openclaw_rl.model_export.merged_folder import check_space, plan_merge, write_merged
from openclaw_rl.model_export.model_card import describe_base
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat, train_settings

MODEL = from_flat({}).model


def merge(base: Path, version: Path, out: Path, *, dtype: str | None = None) -> Any:
    plan = plan_merge(make_policy(base, version), ModelFiles.from_path(str(base)), dtype=dtype)
    agreement = write_merged(plan, out, check=MODEL, show=lambda what, done, total: None)
    written = sum(file.stat().st_size for file in out.iterdir() if file.name != "README.md")
    assert plan.size == pytest.approx(written, abs=200), "the names of types differ in length"
    return agreement


@pytest.mark.parametrize(
    ("dtype", "lora"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float32, {"use_rslora": True}),
        (torch.float32, {"alpha_pattern": {"q_proj": 80}, "rank_pattern": {"q_proj": 16}}),
    ],
)
def test_merged_weights_are_those_of_peft(
    tmp_path: Path, dtype: torch.dtype, lora: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "BLOCK_BYTES", 10_000)  # several blocks for each matrix
    write_adapter(STARTER_FOLDER, tmp_path / "version", dtype=dtype, **lora)
    agreement = merge(STARTER_FOLDER, tmp_path / "version", tmp_path / "out")
    expected = PeftModel.from_pretrained(
        load_model(STARTER_FOLDER), tmp_path / "version"
    ).merge_and_unload()
    torch.testing.assert_close(
        logits_of(load_model(tmp_path / "out")), logits_of(expected), atol=2e-4, rtol=1e-4
    )
    assert agreement.largest <= agreement.bound == 0.001
    assert agreement.change.mean > 0.1, "the adapter changes something"
    assert agreement.change.share == pytest.approx(1, abs=1e-3)


def test_shards_keep_their_names_and_take_another_type(tmp_path: Path) -> None:
    base = copy_starter(tmp_path / "base", max_shard_size="1MB")
    write_adapter(base, tmp_path / "version")
    agreement = merge(base, tmp_path / "version", tmp_path / "out", dtype="bfloat16")
    names = {path.name for path in base.glob("*.safetensors")}
    assert len(names) > 1
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == names
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    original = json.loads((base / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == original["weight_map"]
    assert index["metadata"]["total_size"] * 2 == original["metadata"]["total_size"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    tensors = [tensor for name in names for tensor in load_file(tmp_path / "out" / name).values()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert (agreement.bound_dtype, agreement.holds) == ("bfloat16", True)
    assert 0.001 < agreement.largest < agreement.bound


def make_gpt2(folder: Path, *, prefix: bool) -> Path:
    """Write a GPT-2 with the starter's tokenizer: its layers store the transpose, and its files may lack a prefix."""
    copy_starter(folder)
    vocabulary = json.loads((STARTER_FOLDER / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4)
    ).save_pretrained(folder)
    if not prefix:
        tensors = load_file(folder / "model.safetensors")
        renamed = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.filterwarnings(
    "ignore:fan_in_fan_out is set to False"
)  # PEFT corrects it for this layer, and says so
def test_transposed_layers_are_merged(tmp_path: Path, prefix: bool) -> None:
    base = make_gpt2(tmp_path / "base", prefix=prefix)
    write_adapter(base, tmp_path / "version", target_modules=["c_attn", "c_proj", "c_fc"])
    agreement = merge(base, tmp_path / "version", tmp_path / "out")
    assert agreement.holds
    assert agreement.change.share == pytest.approx(1, abs=1e-3)


def test_whole_weights_are_copied(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.mkdir()
    full = FullWeights(
        str(STARTER_FOLDER),
        train_settings({"finetune": "full", "optimizer.learning_rate": 1e-5}),
        MODEL,
    )
    torch.manual_seed(0)
    for parameter in full.parameters.values():
        parameter.data += 0.01 * torch.randn_like(parameter)
    full.write(version)
    changed = load_file(version / "model.safetensors")
    (version / "optimizer.state").write_bytes(b"x")
    (version / "trainer.json").write_text("{}")
    agreement = merge(STARTER_FOLDER, version, tmp_path / "out")
    assert (agreement.largest, agreement.change) == (0, None)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in changed.items())
    assert (tmp_path / "out" / "chat_template.jinja").is_file()
    assert not {"optimizer.state", "trainer.json"} & {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_a_model_without_the_adapter_is_detected(tmp_path: Path) -> None:
    """In 16 bits the bound is wide: the share of the change tells."""
    write_adapter(STARTER_FOLDER, tmp_path / "version", lora_alpha=2)
    base = ModelFiles.from_path(str(STARTER_FOLDER))
    agreement = compare_models(
        base,
        tmp_path / "version",
        STARTER_FOLDER,
        is_adapter=True,
        weights_dtype="bfloat16",
        model=MODEL,
    )
    assert agreement.largest < agreement.bound
    assert agreement.change is not None
    assert agreement.change.share == pytest.approx(0, abs=1e-6)
    assert agreement.is_within_bound
    assert not agreement.holds


# ---------------------------------------------------------------------------------------- refusals


def plan(base: Path, version: Path) -> object:
    files = ModelFiles.from_path(str(base))
    return plan_updates(files, read_shards(files), read_adapter(make_policy(base, version).ref))


def change_config(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_an_adapter_that_acts_on_some_tokens_is_refused(tmp_path: Path) -> None:
    write_adapter(STARTER_FOLDER, tmp_path / "version")
    change_config(tmp_path / "version" / "adapter_config.json", alora_invocation_tokens=[1, 2])
    with pytest.raises(ModelError, match=r"activated LoRA .* Serve it as an adapter"):
        plan(STARTER_FOLDER, tmp_path / "version")


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    write_adapter(STARTER_FOLDER, tmp_path / "version")
    base = copy_starter(tmp_path / "base")
    change_config(base / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelError, match=r"the base is quantized \(gptq\)"):
        plan(base, tmp_path / "version")


@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True`"
)  # PEFT warns of what is tested here
def test_a_weight_that_two_modules_share_is_refused(tmp_path: Path) -> None:
    base = make_gpt2(tmp_path / "base", prefix=True)
    write_adapter(base, tmp_path / "version", target_modules=["lm_head"])
    with pytest.raises(
        ModelError, match=r"adapts lm_head, whose weight is also that of transformer\.wte\.weight"
    ):
        plan(base, tmp_path / "version")


def test_another_base_is_refused(tmp_path: Path) -> None:
    write_adapter(STARTER_FOLDER, tmp_path / "version")
    base = make_gpt2(tmp_path / "base", prefix=True)
    with pytest.raises(ModelError, match="the base has no such module"):
        plan(base, tmp_path / "version")


def test_a_base_without_safetensors_is_refused(tmp_path: Path) -> None:
    base = copy_starter(tmp_path / "base")
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*\.safetensors there"):
        read_shards(ModelFiles.from_path(str(base)))


def test_a_weight_that_is_too_large_for_the_type_is_refused(tmp_path: Path) -> None:
    base = copy_starter(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    name = next(name for name in tensors if "q_proj" in name)
    tensors[name][0, 0] = 1e6
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    write_adapter(base, tmp_path / "version")
    with pytest.raises(ModelError, match=f"{name}: a merged weight is too large for F16"):
        merge(base, tmp_path / "version", tmp_path / "out", dtype="float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "version"], (
        "nothing is left"
    )


def test_space_is_checked_for_all_files_of_a_disk(tmp_path: Path) -> None:
    check_space({tmp_path / "model": 2**20, tmp_path / "new" / "model.gguf": 2**20})
    with pytest.raises(
        OpenClawError, match=r"MiB free, and .* MiB are needed\. Nothing was written"
    ):
        check_space({tmp_path / "model": 2**20, tmp_path / "new" / "model.gguf": 2**62})


# -------------------------------------------------------------------------------------- model card


def test_the_card_names_base_and_licence_without_paths(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").write_text(
        "---\nlicense: other\nlicense_name: qwen\ntags: [x]\n---\n# Qwen\n"
    )
    base = describe_base(str(snapshot), snapshot)
    assert (base.title, base.hub_id) == ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")
    assert base.licence == {"license": "other", "license_name": "qwen"}
    plain = tmp_path / "mine"
    plain.mkdir()
    assert (describe_base(str(plain), plain).title, describe_base(str(plain), plain).licence) == (
        "mine",
        {},
    )
    (plain / "README.md").write_text("---\n: [broken\n---\n")
    assert describe_base(str(plain), plain).licence == {}
