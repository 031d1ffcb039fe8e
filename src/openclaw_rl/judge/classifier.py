"""A judge that is a sequence-classification model on this machine (a reward model, a PRM)."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.config import Config
from openclaw_rl.judge.reward import Question, RewardJudge


def make(config: Config) -> RewardJudge:
    """The model at `judge.reward_path`. Raises `ModelError`."""
    from openclaw_rl.engines.embedded_classifier import SequenceClassifier  # torch: only where it is asked for

    path = config.judge.reward_source
    assert path is not None, "the settings were checked"
    model = SequenceClassifier(path, device=config.model.device)

    def answer(questions: Sequence[Question]) -> list[float]:
        return model.probabilities([text(q) for q in questions])

    return RewardJudge(config, f"classifier:{path}", answer)


def text(question: Question) -> str:
    """As such models are trained on it."""
    return f"Prompt: {question.prompt}\nResponse: {question.response}\nOutcome: {question.outcome}"
