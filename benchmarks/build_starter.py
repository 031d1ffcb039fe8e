"""Builds the starter policy: a small Qwen3 that knows the little world and has no taste yet.

    python -m benchmarks.build_starter --out DIR

Corpus, tokenizer and weights are made from nothing, in a fixed number of steps on one thread, so that the same command
gives the same folder. Shapes: B dialogues in a batch, T tokens in the longest of them.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from benchmarks.starter_corpus import Dialogue, draw_dialogues, with_hint
from rich.console import Console
from rich.progress import track
from rich.table import Table

from openclaw_rl.evals.phrases import INSTRUCTIONS
from openclaw_rl.evals.styles import TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import Fact, Question, all_facts, held_out_questions, is_correct

if TYPE_CHECKING:
    import torch

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# As in Qwen3: tokens of their own, but part of the text.
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
PAD = "<|endoftext|>"
END = "<|im_end|>"
_REPLY_START = "<|im_start|>assistant\n"
_REPLY_END = "<|im_end|>"

VOCABULARY = 2048
HIDDEN = 128
LAYERS = 4
HEADS = 4
KV_HEADS = 2
MLP = 384
CONTEXT = 4096
# Tokens in a batch, padding included.
BATCH_TOKENS = 1024
# Weights in the loss: of a fact's tokens, and of the opening where an instruction fixes its style. Other tokens of a
# reply weigh 1; without an instruction, the opening is drawn at random.
ANSWER_WEIGHT = 3.0
STYLE_WEIGHT = 4.0
# Parts of 1,024 dialogues that begin the training with one question each.
SINGLE_PARTS = 6
MUON_RATE = 1e-2
ADAM_RATE = 2e-2
MAX_REPLY_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One dialogue: `ids [T]` and the weight of each as a target, `weights [T]`."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Shares over sampled replies, each between 0 and 1; the mean length is in tokens, the end token included."""

    correct: float
    ended: float
    tokens: float
    styles: dict[Taste, float]


def build_tokenizer(texts: Sequence[str], template: str) -> Any:
    """A byte-level BPE trained on the corpus; each answer becomes one token where it follows a space."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [f" {word}" for fact in all_facts() for word in (fact.answer, fact.subject)] * 20
    tokenizer.train_from_iterator([*texts, *words], trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=template,
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def build_model(tokenizer: Any) -> Any:
    """The model with fresh weights, about a million of them."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HIDDEN // HEADS,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True, use_cache=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    # As `starter_corpus` writes hints (render/hint.py).
    config.hint_format = "bracketed"
    return Qwen3ForCausalLM(config)


def spans(
    text: str, answers: Sequence[Fact | None], instructed: Sequence[bool]
) -> list[tuple[int, int, float]]:
    """What is learned of a rendered dialogue: `(start, end, weight)` in characters, the later spans winning."""
    found: list[tuple[int, int, float]] = []
    position = 0
    for fact, is_instructed in zip(answers, instructed, strict=True):
        start = text.index(_REPLY_START, position) + len(_REPLY_START)
        position = text.index(_REPLY_END, start) + len(_REPLY_END)
        found.append((start, position, 1.0))
        if fact is not None:
            opening = re.compile(r"[:.!]").search(text, start)
            assert opening is not None
            answer = re.compile(rf" {re.escape(fact.answer)}[.!]").search(text, start)
            assert answer is not None
            at = answer.start()
            found.append((start, opening.end(), STYLE_WEIGHT if is_instructed else 1.0))
            found.append((at, at + 1 + len(fact.answer), ANSWER_WEIGHT))
    return found


def encode(dialogue: Dialogue, tokenizer: Any) -> Row:
    """Token ids of a dialogue, rendered by the chat template, with their weights."""
    text = tokenizer.apply_chat_template(list(dialogue.messages), tokenize=False)
    encoding = tokenizer(text, return_offsets_mapping=True)
    weights = [0.0] * len(encoding["input_ids"])
    for start, end, weight in spans(text, dialogue.answers, dialogue.instructed):
        for index, (left, right) in enumerate(encoding["offset_mapping"]):
            if start <= left and right <= end:
                weights[index] = weight
    return Row(ids=encoding["input_ids"], weights=weights)


def batches(rows: Sequence[Row], rng: random.Random) -> list[list[Row]]:
    """Batches of rows of like length, of at most `BATCH_TOKENS` padded tokens each, in random order."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if len(row.ids) * (len(groups[-1]) + 1) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return groups


def supply(tokenizer: Any, seed: int) -> Iterator[list[Row]]:
    """Batches of ever new dialogues: first of one question each, where instructions are soonest understood."""
    for part in itertools.count():
        single = part < SINGLE_PARTS
        rows = [
            encode(dialogue, tokenizer)
            for dialogue in draw_dialogues(1024, seed + 1009 * part, single=single)
        ]
        yield from batches(rows, random.Random(seed + part))


def loss_of(model: Any, rows: Sequence[Row], pad: int) -> "torch.Tensor":
    """Weighted mean of the cross-entropy over the target tokens, in nats."""
    import torch

    width = max(len(row.ids) for row in rows)
    ids_BT = torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in rows])
    weights_BT = torch.tensor([row.weights + [0.0] * (width - len(row.ids)) for row in rows])
    # Padding stands on the right and attention is causal: no mask is needed.
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
    targets = ids_BT[:, 1:]
    weights = weights_BT[:, 1:]
    chosen = weights > 0
    losses = torch.nn.functional.cross_entropy(
        model.lm_head(hidden_BTH[chosen]), targets[chosen], reduction="none"
    )
    return (losses * weights[chosen]).sum() / weights[chosen].sum()


def optimizers(model: Any) -> list["torch.optim.Optimizer"]:
    """Muon for the hidden matrices, AdamW for the embeddings and the norms."""
    import torch

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.0),
        torch.optim.AdamW(others, lr=ADAM_RATE, weight_decay=0.0, betas=(0.9, 0.95)),
    ]


def rate_at(step: int, steps: int) -> float:
    """The share of the full learning rate: a short warm-up, then a straight line to zero."""
    return min(1.0, (step + 1) / 20) * min(1.0, (steps - step) / (0.7 * steps))


def train(model: Any, tokenizer: Any, *, steps: int, seed: int) -> None:
    """Fit the model to the corpus, in place."""
    import torch

    model.train()
    optimisers = optimizers(model)
    source = supply(tokenizer, seed)
    for step in track(range(steps), description="Training the starter"):
        for optimiser, rate in zip(optimisers, (MUON_RATE, ADAM_RATE), strict=True):
            optimiser.param_groups[0]["lr"] = rate * rate_at(step, steps)
        loss = loss_of(model, next(source), tokenizer.pad_token_id)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    model.eval()


def sample(
    model: Any, tokenizer: Any, contents: Sequence[str], system: str | None = None
) -> list[tuple[str, int]]:
    """One reply at temperature 1 to each user message, each in a session of its own: `(text, tokens)`.

    The tokens include the end token; a reply of `MAX_REPLY_TOKENS + 1` was cut off.
    """
    import torch

    head = [] if system is None else [{"role": "system", "content": system}]
    texts = [
        tokenizer.apply_chat_template(
            [*head, {"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for content in contents
    ]
    tokenizer.padding_side = "left"
    prompt = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        output = model.generate(
            **prompt, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_REPLY_TOKENS
        )
    replies = []
    for row in output[:, prompt["input_ids"].shape[1] :].tolist():
        length = (
            row.index(tokenizer.eos_token_id) + 1
            if tokenizer.eos_token_id in row
            else MAX_REPLY_TOKENS + 1
        )
        replies.append((tokenizer.decode(row[: length - 1]), length))
    return replies


def measure(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    hint: str = "",
    system: str | None = None,
) -> Measure:
    """What sampled replies to fresh questions are like, under a hint, a system message or neither."""
    contents = [with_hint(q.text, hint) if hint else q.text for q in questions]
    replies = sample(model, tokenizer, contents, system)
    count = len(questions)
    return Measure(
        correct=sum(is_correct(q, text) for q, (text, _) in zip(questions, replies, strict=True))
        / count,
        ended=sum(length <= MAX_REPLY_TOKENS for _, length in replies) / count,
        tokens=sum(length for _, length in replies) / count,
        styles={
            taste: sum(has_style(taste, text) for text, _ in replies) / count for taste in TASTES
        },
    )


def report(model: Any, tokenizer: Any, seed: int, count: int = 300) -> Table:
    """The starter's figures on held-out questions: without instructions, and how well it obeys them."""
    import torch

    torch.manual_seed(seed)
    questions = held_out_questions(count, random.Random(seed))
    plain = measure(model, tokenizer, questions)
    table = Table("taste", "at first", "with a hint", "with a system message")
    for taste in TASTES:
        hint = measure(model, tokenizer, questions, hint=INSTRUCTIONS[taste][0]).styles[taste]
        system = measure(model, tokenizer, questions, system=INSTRUCTIONS[taste][1]).styles[taste]
        table.add_row(taste, f"{plain.styles[taste]:.2f}", f"{hint:.2f}", f"{system:.2f}")
    table.caption = (
        f"correct {plain.correct:.3f}, ended {plain.ended:.3f}, {plain.tokens:.1f} tokens a reply"
    )
    return table


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Write the folder that `from_pretrained` reads."""
    from transformers import GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Full distribution by default: what is trained on must be sampled as the policy has it.
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    # The merges may run out before `VOCABULARY` is reached: ids that no token has must not be sampled.
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(out)
    for file in out.glob("*.safetensors"):
        # Written for the owner alone; a shipped folder is for everyone.
        file.chmod(0o644)
    tokenizer.save_pretrained(out)


@click.command(help=__doc__)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write.",
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=750,
    show_default=True,
    help="Optimizer steps, of about 1,000 tokens each.",
)
def main(out: Path, seed: int, steps: int) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    template = (files("openclaw_rl") / "assets" / "starter" / "chat_template.jinja").read_text()
    texts = [message["content"] for d in draw_dialogues(3000, seed) for message in d.messages]
    tokenizer = build_tokenizer(texts, template)
    model = build_model(tokenizer)
    train(model, tokenizer, steps=steps, seed=seed + 1)
    # Before the report, which draws at random and takes a while.
    save(model, tokenizer, out)
    Console().print(report(model, tokenizer, seed))


if __name__ == "__main__":
    main()
