"""Write a version as a model folder of its own: weights, configuration, tokenizer, chat template and model card."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.common.disk_space import RESERVE_BYTES, free_bytes
from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.engines.adapter_file import has_full_weights, read_adapter
from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.model_export.adapter_updates import TORCH_TYPES, WeightUpdate, plan_updates
from openclaw_rl.model_export.base_weights import FLOAT_BYTES, INDEX_FILE, Shard, read_shards
from openclaw_rl.model_export.logprob_check import Agreement, compare_models
from openclaw_rl.model_export.model_card import CARD_FILE, describe_base, make_card
from openclaw_rl.model_export.shard_writer import shard_size, write_shard
from openclaw_rl.render.model_folder import ModelFiles, read_json_object
from openclaw_rl.settings.load import ModelConfig
from openclaw_rl.types import Policy

WRITABLE_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of numbers in which weights can be written -> safetensors name."""
_CONFIG_FILE = "config.json"
_MODEL_FILES = (
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "LICENSE*",
    "NOTICE*",
)
_TOKENIZER_FILES = (
    *(
        "tokenizer*",
        "*.jinja",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.*",
        "merges.txt",
    ),
    "additional_chat_templates/*.jinja",
)
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """The files of a merged version. `dtype`: safetensors name of the written numbers, None as they are stored."""

    policy: Policy
    base: ModelFiles
    shards: list[Shard]
    updates: Mapping[str, WeightUpdate]  # by name of the stored tensor; empty for whole weights
    is_adapter: bool
    dtype: str | None
    copied: Mapping[str, Path]  # name in the folder -> file

    @property
    def size(self) -> int:
        """Bytes of all files, but for the model card."""
        weights = sum(shard_size(shard, self.dtype) for shard in self.shards)
        return weights + sum(file.stat().st_size for file in self.copied.values())

    @property
    def weights_dtype(self) -> str:
        """Coarsest type of the numbers that are not copied as they are, as torch names it."""
        copies_others = self.is_adapter and self.dtype is None
        written = {
            tensor.dtype_as(self.dtype)
            for shard in self.shards
            for tensor in shard.tensors
            if tensor.dtype in FLOAT_BYTES and (tensor.name in self.updates or not copies_others)
        }
        coarsest = min(written, key=lambda dtype: (FLOAT_BYTES[dtype], dtype))
        return str(TORCH_TYPES[coarsest]).removeprefix("torch.")


def plan_merge(policy: Policy, base: ModelFiles, *, dtype: str | None) -> MergePlan:
    """Return the plan for a version that has files. `base`: of the version; `dtype`: a key of `WRITABLE_TYPES`.

    Raises `OpenClawError` if the version cannot be written as a model.
    """
    assert policy.path is not None
    folder = Path(policy.path)
    is_adapter = not has_full_weights(folder)
    if is_adapter:
        files = base
        shards = read_shards(files)
        updates = plan_updates(files, shards, read_adapter(policy.ref))
    else:
        files = ModelFiles.from_path(str(folder), tokenizer=str(base.tokenizer_folder))
        shards = read_shards(files)
        updates = {}
    copied = _matching_files(base.folder, _MODEL_FILES) | _matching_files(
        base.tokenizer_folder, _TOKENIZER_FILES
    )
    copied[_CONFIG_FILE] = files.folder / _CONFIG_FILE
    if (files.folder / INDEX_FILE).is_file():
        copied[INDEX_FILE] = files.folder / INDEX_FILE
    return MergePlan(
        policy=policy,
        base=base,
        shards=shards,
        updates=updates,
        is_adapter=is_adapter,
        dtype=None if dtype is None else WRITABLE_TYPES[dtype],
        copied=copied,
    )


def check_target(folder: Path) -> Path:
    """Return the absolute path of a folder that may be written. Raises `OpenClawError` unless it is new or empty."""
    out = folder.expanduser().resolve()
    if out.exists() and not out.is_dir():
        raise OpenClawError(f"{folder} is a file. Name a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()):
        raise OpenClawError(
            f"{folder} is not empty, and nothing is overwritten. Name another folder"
        )
    return out


def check_space(needs: Mapping[Path, int]) -> None:
    """Raise `OpenClawError` if files of these sizes do not fit. `needs`: path of a new file or folder -> bytes."""
    by_disk: dict[int, int] = {}
    for path, size in needs.items():
        parent = next(folder for folder in path.parents if folder.is_dir())
        disk = parent.stat().st_dev
        by_disk[disk] = by_disk.get(disk, RESERVE_BYTES) + size
        free = free_bytes(parent)
        if free is not None and free < by_disk[disk]:
            raise OpenClawError(
                f"the disk of {parent} has {free / _MIB:,.0f} MiB free, and {by_disk[disk] / _MIB:,.0f} MiB are "
                "needed. Nothing was written. Free some space, or name a folder on another disk"
            )


def write_merged(
    plan: MergePlan, out: Path, *, check: ModelConfig | None, show: ShowProgress
) -> Agreement | None:
    """Write the folder `out`, which appears when it is complete and was compared with the version.

    `check`: how both models are computed for the comparison; None: they are not compared. Raises `OpenClawError`.
    """
    agreements: list[Agreement] = []

    def fill(folder: Path) -> None:
        _write_files(plan, folder, show)
        if check is not None:
            agreements.append(_compare(plan, folder, check, show))
        card = _card_of(plan, agreements[0] if agreements else None)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")

    if out.is_dir():
        out.rmdir()
    try:
        write_folder(out, {}, fill)
    except OSError as error:
        raise OpenClawError(
            f"{out}: cannot be written ({error.strerror or error}). Name another folder"
        ) from error
    return agreements[0] if agreements else None


def _write_files(plan: MergePlan, folder: Path, show: ShowProgress) -> None:
    for name, file in plan.copied.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / name)
    if plan.dtype is not None:
        _change_dtype(plan, folder)
    written = 0
    total = sum(shard_size(shard, plan.dtype) for shard in plan.shards) // _MIB

    def add_bytes(size: int) -> None:
        nonlocal written
        written += size
        show("writing weights (MiB)", written // _MIB, total)

    for shard in plan.shards:
        write_shard(
            shard, folder / shard.path.name, plan.updates, dtype=plan.dtype, on_bytes=add_bytes
        )


def _change_dtype(plan: MergePlan, folder: Path) -> None:
    """Write the other type of the weights into the configuration and the index."""
    config = read_json_object(folder / _CONFIG_FILE)
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    config[key] = next(name for name, short in WRITABLE_TYPES.items() if short == plan.dtype)
    (folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if INDEX_FILE in plan.copied:
        index = read_json_object(folder / INDEX_FILE)
        total = sum(tensor.size_as(plan.dtype) for shard in plan.shards for tensor in shard.tensors)
        index["metadata"] = {**index.get("metadata", {}), "total_size": total}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _compare(plan: MergePlan, folder: Path, model: ModelConfig, show: ShowProgress) -> Agreement:
    assert plan.policy.path is not None
    agreement = compare_models(
        plan.base,
        Path(plan.policy.path),
        folder,
        is_adapter=plan.is_adapter,
        weights_dtype=plan.weights_dtype,
        model=model,
        show=show,
    )
    if not agreement.holds:
        raise ModelError(_describe_failure(agreement, plan))
    return agreement


def _describe_failure(agreement: Agreement, plan: MergePlan) -> str:
    if agreement.is_within_bound and agreement.change is not None:
        return (
            f"rounded to {plan.weights_dtype}, the merged model has {agreement.change.share:.0%} of what version "
            f"{plan.policy.version} changed: most updates are smaller than the rounding. Nothing was kept. Give "
            "--dtype float32"
        )
    return (
        f"the merged model is not the same as version {plan.policy.version}: log-probabilities differ by up to "
        f"{agreement.largest:.3g} nats, at most {agreement.bound:g} expected for {agreement.bound_dtype}. Nothing was "
        "kept. Try --dtype float32; if that fails too, please report it"
    )


def _card_of(plan: MergePlan, agreement: Agreement | None) -> str:
    if plan.is_adapter:
        how = (
            f"The LoRA adapter of the version was folded into {len(plan.updates)} matrices of the base: "
            "W + scale · BA, computed in float32 and rounded to the type of the weights once."
        )
    else:
        how = "All weights were trained (full fine-tuning); they are those of the version."
    base = describe_base(plan.policy.base, plan.base.folder)
    return make_card(
        plan.policy,
        base,
        how=how,
        weights_dtype=plan.weights_dtype,
        agreement=agreement,
        at=time.time(),
    )


def _matching_files(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """Return the files that match, by their path within the folder."""
    matches = (
        file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()
    )
    return {str(file.relative_to(folder)): file for file in matches}
