"""Looks at a model folder before anything starts. It reads tokenizer, template and headers, but no weights."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ModelError
from openclaw_rl.render.model_folder import ModelFiles, read_json_object
from openclaw_rl.render.renderer import Renderer

_INDEX_FILE = "model.safetensors.index.json"
_ADAPTER_CONFIG = "adapter_config.json"
_BYTES_OF_DTYPE = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 0.5},
    **{
        "I16": 2,
        "U16": 2,
        "F16": 2,
        "BF16": 2,
        "I32": 4,
        "U32": 4,
        "F32": 4,
        "I64": 8,
        "U64": 8,
        "F64": 8,
        "C64": 8,
    },
    **{"F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F6_E2M3": 0.75, "F6_E3M2": 0.75},
}
_DTYPE_NAME = re.compile(r"(torch\.)?(auto|float|half|double|b?float16|float32|float64|float8_\w+)")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_COMPLETE = "Is the copy or the download complete? Get the file again"
TensorInfo = Mapping[str, Any]


def check_model_text(files: ModelFiles) -> None:
    """Raise `ModelError` if the tokenizer or the chat template cannot be used."""
    if not files.templates["default"].strip():
        raise ModelError(f"{files.tokenizer_folder}: the chat template is empty. {_COMPLETE}")
    try:
        Renderer(files)
    except ModelError as error:
        where = files.tokenizer_folder
        raise error if str(where) in str(error) else ModelError(f"{where}: {error}") from error
    except Exception as error:
        # Tokenizers and Jinja raise many kinds, all of which mean a damaged file.
        raise ModelError(
            f"{files.tokenizer_folder}: tokenizer.json or the chat template cannot be used "
            f"({type(error).__name__}: {' '.join(str(error).split())}). {_COMPLETE}"
        ) from error


def check_model_weights(files: ModelFiles, *, loaded_here: bool) -> None:
    """Raise `ModelError` if the weights are damaged or incomplete, or contradict `config.json`.

    Of each file only the header is read. `loaded_here`: the transformers of this environment loads them, and must know
    the architecture.
    """
    _check_config(files, loaded_here=loaded_here)
    index = read_json_object(files.folder / _INDEX_FILE)
    if not files.weights and not index:
        raise ModelError(f"{files.folder}: no weights there. Expected *.safetensors. {_COMPLETE}")
    weight_map = index.get("weight_map", {})
    if not isinstance(weight_map, dict):
        raise ModelError(
            f"{files.folder / _INDEX_FILE}: expected an object `weight_map`. {_COMPLETE}"
        )
    paths = _weight_paths(files, weight_map if index else None)
    tensors: dict[str, TensorInfo] = {}
    for path in paths:
        tensors |= read_header(path)
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise ModelError(
            f"{files.folder}: {_INDEX_FILE} names the tensor {missing[0]}, which no file has. {_COMPLETE}"
        )
    problem = _embedding_problem(files, tensors) or _layer_problem(files, tensors)
    if problem:
        raise ModelError(
            f"{files.folder}: {problem}. config.json and the weights are not of the same model"
        )


def _weight_paths(files: ModelFiles, weight_map: Mapping[str, Any] | None) -> list[Path]:
    """Return the files that the index names, or all without an index. Raises `ModelError` if one is absent."""
    paths = {path.name: path for path in files.weights if path.suffix == ".safetensors"}
    names = set(paths) if weight_map is None else set(map(str, weight_map.values()))
    absent = sorted(names - set(paths))
    if absent:
        raise ModelError(
            f"{files.folder}: {_INDEX_FILE} names {absent[0]}, which is not there. {_COMPLETE}"
        )
    return [paths[name] for name in sorted(names)]


def _check_config(files: ModelFiles, *, loaded_here: bool) -> None:
    config = files.config
    where = files.folder / "config.json"
    if not config:
        is_adapter = (files.folder / _ADAPTER_CONFIG).exists()
        other = "an adapter: give the folder of its base" if is_adapter else "incomplete"
        raise ModelError(
            f"{files.folder}: no config.json there. Expected a model folder; this one is {other}"
        )
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{where}: expected a text `model_type`, got {kind!r}. {_COMPLETE}")
    dtype = config.get("dtype", config.get("torch_dtype")) or "auto"
    if not _DTYPE_NAME.fullmatch(str(dtype)):
        raise ModelError(
            f"{where}: unknown `dtype` {dtype!r}; expected float32, bfloat16 or float16. {_COMPLETE}"
        )
    if loaded_here and not _is_known_architecture(kind):
        raise ModelError(
            f"{where}: the installed transformers does not know the architecture {kind!r}. Update transformers, or "
            "choose another model"
        )


def _is_known_architecture(kind: str) -> bool:
    """Return whether transformers names the architecture. Its tables are read as text: an import takes seconds."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return True
    tables = (Path(spec.origin).parent / "models" / "auto").glob("*.py")
    return any(f'"{kind}"' in table.read_text(encoding="utf-8") for table in tables)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file by name. Raises `ModelError` if it is damaged or truncated."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= size - 8:
            raise ModelError(
                f"{path}: not a safetensors file ({size} bytes, no header). {_COMPLETE}"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        ends = [_end_of_tensor(path, name, tensor) for name, tensor in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{path}: its header cannot be read ({type(error).__name__}: {error}). {_COMPLETE}"
        ) from error
    expected = 8 + length + max(ends, default=0)
    if expected != size:
        raise ModelError(
            f"{path}: {size} bytes, expected {expected}: it is truncated or damaged. {_COMPLETE}"
        )
    return dict(header)


def _end_of_tensor(path: Path, name: str, tensor: TensorInfo) -> int:
    begin, end = map(int, tensor["data_offsets"])
    numbers = 1
    for length in tensor["shape"]:
        numbers *= int(length)
    if tensor["dtype"] not in _BYTES_OF_DTYPE:
        raise ModelError(
            f"{path}: the tensor {name} has the unknown type {tensor['dtype']!r}. {_COMPLETE}"
        )
    if end - begin != numbers * _BYTES_OF_DTYPE[tensor["dtype"]]:
        raise ValueError(
            f"the tensor {name} has {end - begin} bytes, which its shape {tensor['shape']} contradicts"
        )
    return end


def _text_config(files: ModelFiles) -> Mapping[str, Any]:
    """Return the part of `config.json` that is about the text model."""
    inner = files.config.get("text_config")
    return inner if isinstance(inner, dict) else files.config


def _embedding_problem(files: ModelFiles, tensors: Mapping[str, TensorInfo]) -> str | None:
    expected = _embedding_shape(files)
    shapes = {}
    for name in filter(_EMBEDDING.search, tensors):
        shapes[name] = list(tensors[name]["shape"])
    # A model with several parts (speech, vision) may have further embeddings of other shapes.
    if expected is None or not shapes or expected in shapes.values():
        return None
    name, shape = next(iter(shapes.items()))
    return f"the tensor {name} has the shape {shape}, expected {expected}"


def _embedding_shape(files: ModelFiles) -> list[Any] | None:
    """Return the shape that the configuration gives the embeddings; None if it does not say."""
    config = _text_config(files)
    shape = [config.get("vocab_size"), config.get("hidden_size")]
    has_own_width = config.get("word_embed_proj_dim") or config.get("embedding_size")
    return None if has_own_width or not all(shape) else shape


def _layer_problem(files: ModelFiles, tensors: Mapping[str, TensorInfo]) -> str | None:
    layers = _text_config(files).get("num_hidden_layers")
    matches = [_LAYER.search(name) for name in tensors]
    present = {int(match[1]) for match in matches if match is not None}
    if not isinstance(layers, int) or not present:
        return None
    absent = set(range(layers)) - present
    return f"the weights of layer {min(absent)} of {layers} are missing" if absent else None
