"""A tiny model that reads images, with random weights: LLaVA's parts, two layers each, and a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.render.model_folders import make, tokenizer
from tokenizers import AddedToken
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

CONTEXT = 512
PATCH, SIDE = 14, 28  # pixels
IMAGE_TOKENS = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string %}{{ message.content }}{% else %}"
    "{%- for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{%- endfor %}{% endif %}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)


def make_vision_model(folder: Path) -> Path:
    """Write the folder of the model, as transformers saves it."""
    make(folder, "chatml")
    made = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size=size, crop_size=size)
    processor = LlavaProcessor(
        image_processor=images,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(_model_config(made.get_vocab_size(), made.token_to_id("<image>")))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.08)
    model.generation_config.eos_token_id = made.token_to_id("<|im_end|>")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _model_config(vocabulary: int, image_token: int) -> LlavaConfig:
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=64,
    )
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
    )
    return LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=image_token, vision_feature_layer=-2, dtype="float32"
    )
