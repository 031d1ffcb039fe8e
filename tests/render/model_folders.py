"""Small model folders without weights: a tokenizer trained on the spot and a template like those in the field."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the weather in Paris today? It is sunny, about 21 degrees.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}} {"type": "function", "function": {}}',
    "def main():\n    print('hello')\n\n\nif __name__ == '__main__':\n    main()\n",
    "<|im_start|>system user assistant tool Environment: ipython Cutting Knowledge Date: December 2023 Today Date:",
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NOT_SPECIAL = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

TEMPLATES = {
    path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
"""chatml: tools as Hermes and Qwen2.5 have them. thinking: as Qwen3's, reasoning is kept after the last question only,
and the prompt opens it. keeping: the same, but nothing is dropped. llama: as Llama 3.1's, tools in the first question,
one call per reply, content is trimmed."""
CHATML = TEMPLATES["chatml"]
TEMPLATES["keeping"] = TEMPLATES["thinking"].replace("loop.index0 > ns.last_query_index", "true")


def tokenizer(specials: list[str]) -> Tokenizer:
    """Byte-level BPE with Qwen's pre-tokenizer and every byte in its alphabet."""
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def make_visual(folder: Path) -> Path:
    """Make a written folder one of a model that reads images."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": {"hidden_size": 8}}))
    (folder / "preprocessor_config.json").write_text("{}")
    return folder


def make(folder: Path, kind: str) -> Path:
    """Write a model folder with the template `kind`."""
    folder.mkdir(parents=True, exist_ok=True)
    llama = kind == "llama"
    specials = (
        [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ]
        if llama
        else ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    )
    made = tokenizer(specials)
    if not llama:
        made.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    stop = specials[-1]
    named = {"eos_token": stop, "pad_token": specials[1 if llama else 0]} | (
        {"bos_token": specials[0]} if llama else {}
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    )
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "max_position_embeddings": 4096})
    )
    stops = [made.token_to_id(stop), made.token_to_id(specials[1 if llama else 0])]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    (folder / "chat_template.jinja").write_text(TEMPLATES[kind])
    return folder
