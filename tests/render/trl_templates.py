"""Model folders with the real templates of the families that people run (TRL ships them), and tokenizers to match."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.render.model_folders import NOT_SPECIAL, tokenizer
from tokenizers import AddedToken

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = (
    *(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ),
    "<|python_tag|>",
)
HARMONY = (
    *(
        "<|startoftext|>",
        "<|endoftext|>",
        "<|return|>",
        "<|constrain|>",
        "<|channel|>",
        "<|start|>",
        "<|end|>",
    ),
    *("<|message|>", "<|call|>"),
)
DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
    "<｜tool▁output▁end｜>",
)
MISTRAL = (
    *(
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
    ),
    *(
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[THINK]",
        "[/THINK]",
    ),
)


@dataclass(frozen=True)
class Kind:
    """One family's files: its format, the template's name, special tokens, the end of a turn, the first token."""

    family: str
    template: str
    specials: tuple[str, ...]
    stop: str
    first: str | None = None
    source: str = "trl"


KINDS = {
    "qwen2_5": Kind("hermes", "qwen2_5", CHATML, "<|im_end|>"),
    "qwen3": Kind("hermes", "qwen3", CHATML, "<|im_end|>"),
    "qwen3_instruct_2507": Kind("hermes", "qwen3_instruct_2507", CHATML, "<|im_end|>"),
    "qwen3_5_think": Kind("qwen-xml", "qwen3_5_think", CHATML, "<|im_end|>"),
    "qwen3_5_nothink": Kind("qwen-xml", "qwen3_5_nothink", CHATML, "<|im_end|>"),
    "qwen3_6": Kind("qwen-xml", "qwen3_6", CHATML, "<|im_end|>"),
    "qwen3_8": Kind("qwen-xml", "qwen3_8", CHATML, "<|im_end|>"),
    "llama3_1": Kind("llama", "llama3_1", LLAMA, "<|eot_id|>", "<|begin_of_text|>"),
    "llama3_2": Kind("llama", "llama3_2", LLAMA, "<|eot_id|>", "<|begin_of_text|>"),
    "gptoss": Kind("harmony", "gptoss", HARMONY, "<|return|>", "<|startoftext|>"),
    "deepseekv3": Kind("deepseek", "deepseekv3", DEEPSEEK, DEEPSEEK[1], DEEPSEEK[0]),
    "mistral_args": Kind("mistral", "mistral_args", MISTRAL, "</s>", "<s>", source="here"),
    "mistral_array": Kind("mistral", "mistral_array", MISTRAL, "</s>", "<s>", source="here"),
}


def template(kind: Kind) -> str:
    """TRL's file, read where it is installed: importing TRL itself would take seconds."""
    if kind.source == "here":  # no package ships Mistral's: these have the same shape
        return (Path(__file__).parent / "templates" / f"{kind.template}.jinja").read_text()
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    return (
        Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{kind.template}.jinja"
    ).read_text()


@cache
def _trained(specials: tuple[str, ...]) -> str:
    made = tokenizer(list(specials))
    if specials is CHATML or specials is DEEPSEEK:
        made.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL])
    return str(made.to_str())


def make_kind(folder: Path, name: str) -> Path:
    """Write a model folder with the real template `name`."""
    return write_kind(folder, KINDS[name])


def write_kind(folder: Path, kind: Kind) -> Path:
    """Write a model folder with the real template of `kind`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_trained(kind.specials))
    named = {"eos_token": kind.stop, "pad_token": kind.specials[0]} | (
        {"bos_token": kind.first} if kind.first else {}
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    )
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "max_position_embeddings": 8192})
    )
    (folder / "chat_template.jinja").write_text(template(kind))
    return folder
