"""Convert a GGUF file of a chat model into a model folder: `python -m openclaw_rl.engines.embedded.convert_gguf`.

transformers reads the quantised file. Its weights are copied into a model without quantisation, in bfloat16, because a
model that was read from a GGUF file cannot be saved.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from openclaw_rl.common.atomic_files import sync_path

_SOURCE_KEYS = ("quantization_config", "_name_or_path", "architectures", "dtype", "torch_dtype")


def convert_gguf(file: Path, out: Path) -> None:
    """Write the model of a GGUF file to the new folder `out`.

    Raises `ValueError` for a file without a chat template, and what transformers raises for an unknown architecture.
    """
    source = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    if not tokenizer.chat_template:
        raise ValueError(f"{file}: no chat template in the file; expected an instruct model")
    values = {
        key: value for key, value in source.config.to_dict().items() if key not in _SOURCE_KEYS
    }
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(source.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
    )
    out.mkdir(parents=True)
    plain.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in (*out.iterdir(), out):
        sync_path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a GGUF file into a model folder.")
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path, help="folder that does not exist yet")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    try:
        convert_gguf(arguments.file, arguments.out)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"{arguments.file.name}: {error}")


if __name__ == "__main__":
    main()
