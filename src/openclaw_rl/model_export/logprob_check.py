"""Comparison of a merged model with base and adapter, by the log-probabilities of likely next tokens.

Shapes: P positions of all prompts together, K likeliest tokens at each.

Two things are compared. The largest difference must be within the bound of the type of numbers. For 16-bit numbers that
bound is wide, so the merged model must also have the version's whole change: with the change v of the version against
its base and the change m of the merged model, the share m·v / v·v is about 1. It is less if rounding loses the updates,
because they are smaller than the distance of two numbers of the type.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from openclaw_rl.common.progress import ShowProgress
from openclaw_rl.errors import ModelError
from openclaw_rl.learner.model.peft_adapter import load_base
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import ModelConfig

LIKELIEST = 8
"""Tokens that are compared at each position: those that sampling may choose."""
BOUNDS = {"float64": 0.001, "float32": 0.001, "float16": 0.25, "bfloat16": 2.0}
"""Largest difference of a log-probability, in nats, by the coarsest type of numbers that took part.

SmolLM2-135M computed in bfloat16 differs by up to 0.5 from itself in float32, and in float16 by up to 0.06.
"""
SHARE_TOLERANCE = 0.1
"""Largest deviation of the share from 1, beside three times its standard error."""
# Of two models.
_COMPARING = "comparing log-probabilities"
_CONVERSATIONS = (
    ("What is the capital of France?", "The capital of France is Paris."),
    (
        "Write a short thank-you note to a colleague.",
        "Dear Sam,\n\nThank you for your help with the report.\n\nBest,",
    ),
    ("Sort these numbers: 8, 3, 11.", "3, 8, 11"),
    (
        "Explain in one sentence why the sky is blue.",
        "Air scatters blue light more than red light.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a version against its base, and how much of it the merged model has."""

    mean: float  # mean difference of a log-probability between version and base, in nats
    share: float  # of the change in the merged model
    share_error: float  # standard error of `share`

    @property
    def is_whole(self) -> bool:
        return abs(self.share - 1) <= SHARE_TOLERANCE + 3 * self.share_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two models agree, in nats."""

    largest: float  # largest difference
    mean: float  # mean difference
    values: int  # number of log-probabilities
    bound: float  # of `largest`
    bound_dtype: str
    change: Change | None  # None for whole weights, and for an adapter that changes nothing

    @property
    def is_within_bound(self) -> bool:
        return self.largest <= self.bound

    @property
    def holds(self) -> bool:
        return self.is_within_bound and (self.change is None or self.change.is_whole)

    @property
    def hides_change(self) -> bool:
        """Whether rounding changed the model half as much as its training did, or more."""
        return self.change is not None and self.mean >= self.change.mean / 2


def compare_models(
    base: ModelFiles,
    version: Path,
    merged: Path,
    *,
    is_adapter: bool,
    weights_dtype: str,
    model: ModelConfig,
    show: ShowProgress = lambda what, done, total: None,
) -> Agreement:
    """Compare the model in `merged` with a version. Only one of them is in memory at a time.

    `base`: of the version, with its tokenizer; `version`: folder of an adapter, or of whole weights; `weights_dtype`:
    coarsest type of the merged weights, as torch names it; `model`: type and device of the computation. Raises
    `ModelError`.
    """
    prompts = _encode_prompts(base)
    plain = None
    show(_COMPARING, 0, 2)
    reference = load_base(str(base.folder if is_adapter else version), model)
    compute_dtype = str(reference.dtype).removeprefix("torch.")
    if is_adapter:
        plain = _score(reference, prompts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = PeftModel.from_pretrained(reference, version).eval()
    scores = _score(reference, prompts)
    ids = scores.topk(LIKELIEST, dim=-1).indices
    expected = scores.gather(1, ids)
    del reference, scores
    gc.collect()
    show(_COMPARING, 1, 2)
    actual = _score(load_base(str(merged), model), prompts).gather(1, ids)
    show(_COMPARING, 2, 2)
    difference = (actual - expected).abs()
    if not difference.isfinite().all():
        raise ModelError(
            f"{merged.name}: the merged model gives log-probabilities that are not finite"
        )
    coarsest = max((weights_dtype, compute_dtype), key=BOUNDS.__getitem__)
    return Agreement(
        largest=float(difference.max()),
        mean=float(difference.mean()),
        values=difference.numel(),
        bound=BOUNDS[coarsest],
        bound_dtype=coarsest,
        change=None if plain is None else _measure_change(plain.gather(1, ids), expected, actual),
    )


def _measure_change(
    base: torch.Tensor, version: torch.Tensor, merged: torch.Tensor
) -> Change | None:
    """Return how much of a version's change is in the merged model, from log-probabilities [P, K]; None for no change.

    The values of one position depend on one another, so the standard error counts positions.
    """
    change = version - base
    square = change.square().sum()
    if square == 0:
        return None
    share = ((merged - base) * change).sum() / square
    residual = merged - base - share * change
    error = (residual.square().mean() / change.square().mean() / len(change)).sqrt()
    return Change(mean=float(change.abs().mean()), share=float(share), share_error=float(error))


def _encode_prompts(files: ModelFiles) -> list[list[int]]:
    renderer = Renderer(files)
    prompts = []
    for question, answer in _CONVERSATIONS:
        messages = [{"role": "user", "content": question}]
        prompts.append([*renderer.render(messages).prompt_ids, *renderer.tokenizer.encode(answer)])
    return prompts


@torch.inference_mode()
def _score(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the log-probabilities of the whole vocabulary [P, vocabulary] in float32."""
    rows = []
    for prompt in prompts:
        logits = model(
            input_ids=torch.tensor([prompt], device=model.device), use_cache=False
        ).logits[0]
        rows.append(logits.float().log_softmax(dim=-1).cpu())
    return torch.cat(rows)
