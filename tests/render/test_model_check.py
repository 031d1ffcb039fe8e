"""Damaged model folders are refused before anything starts, with the file and what is wrong with it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import ModelError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.supervisor.preflight import check_before_start

WORKERS = ("engine", "gateway", "collect", "judge", "train")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        and None
    )


def delete(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def cut(name: str, part: float) -> Callable[[Path], None]:
    return lambda folder: (
        (folder / name).write_bytes((r := (folder / name).read_bytes())[: int(len(r) * part)])
        and None
    )


def set_config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def change_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        raw = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        change(header)
        new = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + length :])

    return damage


def first_tensor(header: dict[str, Any]) -> dict[str, Any]:
    return next(value for key, value in header.items() if key != "__metadata__")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no weights": (delete(WEIGHTS), "no weights there"),
    "empty weights": (write(WEIGHTS, ""), "model.safetensors: not a safetensors file"),
    "random weights": (write(WEIGHTS, b"\xff" * 5000), "model.safetensors: not a safetensors file"),
    "truncated weights": (cut(WEIGHTS, 0.7), "truncated"),
    "weights cut in the header": (cut(WEIGHTS, 0.0001), "not a safetensors file"),
    "a shape": (change_header(lambda h: first_tensor(h).update(shape=[3, 3])), "which its shape"),
    "a type": (change_header(lambda h: first_tensor(h).update(dtype="F13")), "unknown type 'F13'"),
    "a header that is a list": (
        write(WEIGHTS, struct.pack("<Q", 2) + b"[]"),
        "header cannot be read",
    ),
    "no config": (delete("config.json"), "no config.json there"),
    "an adapter": (
        lambda f: (f / "config.json").rename(f / "adapter_config.json") and None,
        "an adapter",
    ),
    "bad JSON": (write("config.json", "{"), "config.json: cannot be read as JSON"),
    "deep JSON": (write("config.json", "[" * 100_000), "config.json: cannot be read as JSON"),
    "a list": (write("config.json", "[]"), "expected a JSON object"),
    "unknown architecture": (
        set_config(model_type="martian"),
        "does not know the architecture 'martian'",
    ),
    "no architecture": (set_config(model_type=None), "expected a text `model_type`"),
    "unknown dtype": (set_config(dtype="float12"), "unknown `dtype` 'float12'"),
    "other vocabulary": (set_config(vocab_size=12), "expected [12,"),
    "more layers": (set_config(num_hidden_layers=99), "of 99 are missing"),
    "absent shard": (
        write(INDEX, '{"weight_map": {"a": "model-2.safetensors"}}'),
        "names model-2.safetensors, which is not there",
    ),
    "absent tensor": (
        write(INDEX, '{"weight_map": {"a": "model.safetensors"}}'),
        "names the tensor a",
    ),
    "index of another kind": (
        write(INDEX, '{"weight_map": []}'),
        "expected an object `weight_map`",
    ),
    "no tokenizer": (delete("tokenizer.json"), "no tokenizer.json there"),
    "empty tokenizer": (write("tokenizer.json", ""), "tokenizer.json"),
    "cut tokenizer": (cut("tokenizer.json", 0.5), "tokenizer.json"),
    "tokenizer of another kind": (write("tokenizer.json", '{"a": 1}'), "tokenizer.json"),
    "broken template": (write("chat_template.jinja", "{% for x in %}"), "template"),
    "template in another encoding": (write("chat_template.jinja", b"\xff\xfe{"), "template"),
    "empty template": (write("chat_template.jinja", ""), "template"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ASSETS / "starter", tmp_path / "model"))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_model_is_refused(model: Path, kind: str) -> None:
    damage, words = DAMAGE[kind]
    damage(model)
    with pytest.raises(ModelError) as caught:
        check_before_start(from_flat({"model.path": str(model)}), WORKERS)
    assert words in str(caught.value)
    assert str(model) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_model_passes_also_in_shards(model: Path) -> None:
    config = from_flat({"model.path": str(model)})
    check_before_start(config, WORKERS)
    (model / WEIGHTS).rename(model / "model-1.safetensors")
    raw = (model / "model-1.safetensors").read_bytes()
    names = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).keys() - {"__metadata__"}
    (model / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "model-1.safetensors")})
    )
    check_before_start(config, WORKERS)


def test_a_further_embedding_of_another_shape_is_no_damage(model: Path) -> None:
    """As of a part for speech; the starter's own embedding has the expected shape."""

    def add(header: dict[str, Any]) -> None:
        end = max(
            tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"
        )
        header["a.talker.embed_tokens.weight"] = {
            "dtype": "U8",
            "shape": [3, 2],
            "data_offsets": [end, end + 6],
        }

    change_header(add)(model)
    with (model / WEIGHTS).open("ab") as file:
        file.write(bytes(6))
    check_before_start(from_flat({"model.path": str(model)}), WORKERS)


@pytest.mark.parametrize("key", ["word_embed_proj_dim", "embedding_size"])
def test_an_embedding_that_is_projected_is_no_damage(model: Path, key: str) -> None:
    set_config(vocab_size=12, **{key: 16})(model)
    check_before_start(from_flat({"model.path": str(model)}), WORKERS)


def test_an_engine_elsewhere_needs_no_weights_here(model: Path) -> None:
    (model / WEIGHTS).unlink()
    config = from_flat(
        {"model.path": str(model), "engine.backend": "vllm", "engine.url": "http://localhost:9"}
    )
    check_before_start(config, ("engine", "gateway"))
