"""Local sequence-classification model: texts in, probability of the positive class out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from openclaw_rl.errors import ModelError

# Tokens; of a longer text the last ones are read.
MAX_TEXT_TOKENS = 2048


class SequenceClassifier:
    """Classifier with one logit (sigmoid) or two (softmax; the second class is the positive one)."""

    def __init__(self, path: str, *, device: str = "auto") -> None:
        """Load `path`, a folder or hub id. Raise `ModelError` for another kind of model or an untrained head."""
        transformers_logging.disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                path, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(
                f"{path}: cannot be loaded as a sequence classifier: {error}"
            ) from error
        missing = sorted(loading["missing_keys"])
        if missing:
            raise ModelError(
                f"{path}: is not a trained classifier: it has no weights for {', '.join(missing[:3])}"
            )
        if model.config.num_labels not in (1, 2):
            raise ModelError(
                f"{path}: has {model.config.num_labels} classes, expected 1 or 2 (the second is positive)"
            )
        chosen = device
        if device == "auto":
            chosen = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.eval().requires_grad_(False).to(chosen)
        self._max_tokens = min(
            MAX_TEXT_TOKENS, getattr(model.config, "max_position_embeddings", MAX_TEXT_TOKENS)
        )
        self._configure_padding()

    def _configure_padding(self) -> None:
        """Set up padding and truncation. Texts are classified one by one if the tokenizer has no padding token."""
        self._tokenizer.truncation_side = "left"
        self._tokenizer.padding_side = "right"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._can_batch = self._tokenizer.pad_token is not None
        self._model.config.pad_token_id = self._tokenizer.pad_token_id

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """Return the probabilities [B] of the positive class."""
        if self._can_batch or len(texts) < 2:
            return self._classify_batch(texts)
        return [one for text in texts for one in self._classify_batch([text])]

    @torch.no_grad()
    def _classify_batch(self, texts: Sequence[str]) -> list[float]:
        inputs = self._tokenizer(
            list(texts),
            return_tensors="pt",
            truncation=True,
            max_length=self._max_tokens,
            padding=len(texts) > 1,
        )
        # The text is a single segment.
        inputs.pop("token_type_ids", None)
        logits = self._model(**inputs.to(self._model.device)).logits.float()
        probabilities: torch.Tensor = (
            torch.sigmoid(logits[:, 0]) if logits.shape[1] == 1 else torch.softmax(logits, -1)[:, 1]
        )
        return [float(p) for p in probabilities.cpu()]
