"""A tiny model that reads images, with random weights: two layers each, and a tokenizer of its own.

Idefics3, because vLLM and transformers both run it without torchvision, which has no builds for every CPU.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tests.render.model_folders import make, tokenizer
from tokenizers import AddedToken
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig

CONTEXT = 512
PATCH, SIDE, SCALE = 14, 56, 2  # pixels, pixels, patches joined to one token on each side
IMAGE_TOKENS = (SIDE // PATCH // SCALE) ** 2
IMAGE_TOKEN = "<image>"
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string %}{{ message.content }}{% else %}"
    "{%- for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{%- endfor %}{% endif %}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
_IMAGE_SPECIALS = (IMAGE_TOKEN, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def make_vision_model(folder: Path) -> Path:
    """Write the folder of the model, as transformers saves it."""
    make(folder, "chatml")
    made = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in _IMAGE_SPECIALS]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    edge = {"longest_edge": SIDE}
    images = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
    processor = Idefics3Processor(images, fast, image_seq_len=IMAGE_TOKENS, chat_template=TEMPLATE)
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(
        _model_config(len(fast), made.token_to_id(IMAGE_TOKEN))
    )
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.08)
    model.generation_config.eos_token_id = made.token_to_id("<|im_end|>")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _model_config(vocabulary: int, image_token: int) -> Idefics3Config:
    vision = Idefics3VisionConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        pad_token_id=0,
    )
    return Idefics3Config(
        vision_config=vision,
        text_config=text,
        image_token_id=image_token,
        scale_factor=SCALE,
        dtype="float32",
    )
