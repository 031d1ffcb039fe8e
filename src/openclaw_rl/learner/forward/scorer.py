"""Log-probabilities of given tokens under one policy, without optimizer and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.model import weights
from openclaw_rl.settings.load import ModelConfig, TrainConfig
from openclaw_rl.types import Ids, Logprobs


class SequenceScorer:
    """Scorer for one loaded policy. Prompts that rows share are computed once."""

    def __init__(
        self, path: str, folder: str | None, train: TrainConfig, model: ModelConfig
    ) -> None:
        """`path`: folder of the base weights; `folder`: policy folder, or None for the base itself.

        Raises `ModelError` or `ConfigError` if they cannot be loaded or do not match.
        """
        torch.set_num_threads(train.threads)
        loaded = weights.make_weights(path, train, model)
        if folder is not None:
            loaded.read(Path(folder))
        loaded.model.eval()
        # A disabled adapter costs no time.
        self._weights_context = loaded.using_base if folder is None else nullcontext
        self._runner = ForwardRunner(loaded.causal, micro_tokens=train.batch.micro_tokens)

    def score(self, rows: Sequence[tuple[Ids, Ids]], done: Callable[[int], None]) -> list[Logprobs]:
        """Return [R] natural log-probabilities at temperature 1 for each (prompt [P], response [R]).

        `done` is called with the number of rows scored so far.
        """
        packed = [
            TokenSequence(prompt_ids=prompt, response_ids=response, temperature=1.0)
            for prompt, response in rows
        ]
        with self._weights_context():
            return [
                scores.logp.to(torch.float32).numpy()
                for scores in self._runner.logprobs(packed, done=done)
            ]
