"""A model folder without a model: a tokenizer and a chat template of the usual kind, for a stub that samples.

The starter's context is 4,096 tokens; an agent request needs more than twice that. Pre-tokenizer and template are those
of the Qwen family; the vocabulary is trained on the spot, so that a token is about as long as usual.
"""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from conversations import Conversation, Traffic

CONTEXT = 131_072
VOCABULARY = 16_384
REPLY = (
    "I looked at the item and read the file that it names: the change is small, the tests pass, and nothing else in "
    "the workspace needs your attention right now."
)
REPLY_TOKENS = 20
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions.\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nFor each call return a json object within <tool_call></tool_call> tags.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{%- for part in message.content or [] %}{{- part.text }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_path("stdlib"))
    source = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(library.glob("[a-e]*.py"))
    ]
    agent = Conversation(Traffic(agent=True, stream=False), "any").body().decode()
    tokenizer.train_from_iterator([*source, agent, REPLY], trainer)
    return tokenizer


def make(folder: Path) -> tuple[list[str], list[int], int]:
    """Write the folder. Returns the reply in pieces, their token ids, and the stop token's id."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    stop = tokenizer.token_to_id("<|im_end|>")
    assert stop is not None
    ids = tokenizer.encode(REPLY).ids[:REPLY_TOKENS]
    pieces = [tokenizer.decode([token]) for token in ids]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT,
        "eos_token_id": stop,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": CONTEXT}
        )
    )
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    header = b'{"empty":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return pieces, ids, stop
