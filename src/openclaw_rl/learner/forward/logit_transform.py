"""Detection of the transform that a model applies to its logits after the LM head, by trial of its config values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from openclaw_rl.errors import ModelError
from openclaw_rl.learner.forward.lm_head import IDENTITY_TRANSFORM, LogitTransform

# Gemma.
_CAPS = ("final_logit_softcapping", "logits_soft_cap")
# Cohere multiplies; Granite divides, HyperCLOVA X multiplies.
_FACTORS = ("logit_scale", "logits_scaling")


def find_logit_transform(model: Any) -> LogitTransform:
    """Return the logit transform of a model. Raises `ModelError` if no known transform reproduces its logits."""
    logits, plain = _trial_logits(model)
    gaps = {
        transform: (logits - transform(plain)).abs().max().item()
        for transform in _candidate_transforms(model.config.get_text_config())
    }
    best = min(gaps, key=lambda transform: gaps[transform])
    # With the right transform only rounding differs. The bound is tight: wrong ones hardly change small logits.
    if gaps[best] <= min(1e-2, 64 * torch.finfo(logits.dtype).eps * logits.abs().max().item()):
        return best
    raise ModelError(
        f"{model.config.name_or_path}: this {model.config.model_type} model changes its logits after the LM head (by "
        f"up to {gaps[IDENTITY_TRANSFORM]:.3g}) in a way that the local trainer does not know. Use a model of another "
        "family."
    )


@torch.no_grad()
def _trial_logits(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (logits of the model for some tokens, logits of its head on the hidden states)."""
    try:
        ids_BL = torch.arange(
            min(8, model.config.get_text_config().vocab_size), device=model.device
        ).unsqueeze(0)
        logits = model(input_ids=ids_BL, use_cache=False).logits
        below = model.get_decoder()(input_ids=ids_BL, use_cache=False).last_hidden_state
        return logits, model.get_output_embeddings()(below)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The type depends on the model.
        raise ModelError(
            f"{model.config.name_or_path}: this {model.config.model_type} model cannot be trained here "
            f"({type(error).__name__}: {error}). Use a model of another family."
        ) from error


def _candidate_transforms(text: Any) -> list[LogitTransform]:
    """Return the transforms to try, the identity first."""
    caps = _stated_numbers(text, _CAPS)
    factors = _stated_numbers(text, _FACTORS)
    scales = [{}, *({"times": f} for f in factors), *({"over": f} for f in factors)]
    return [LogitTransform(**scale, cap=cap) for cap in (None, *caps) for scale in scales]


def _stated_numbers(text: Any, names: Sequence[str]) -> list[float]:
    """Return the values of those settings that the model has, and that are not zero."""
    values = [getattr(text, name, None) for name in names]
    return [float(value) for value in values if value]
