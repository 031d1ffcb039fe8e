"""Reward model from a sequence-classification model: the reward is the probability of its second class.

    openclaw-rl up --custom-rm-path examples/plugins/custom_rm.py --rm-checkpoint /path/to/prm

`judge.kind: classifier` with `judge.reward_path` does the same without a file, in batches.
"""

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class CustomPRM:
    """Scores a turn by its outcome."""

    def __init__(self, model_path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            model_path, dtype=torch.bfloat16
        )
        self.model.eval()

    def score(self, prompt: str, response: str, next_state: str) -> float:
        """Return the reward in [0, 1]."""
        combined = f"Prompt: {prompt}\nResponse: {response}\nOutcome: {next_state}"
        inputs = self.tokenizer(combined, return_tensors="pt", truncation=True, max_length=2048)
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            logits = self.model(**inputs).logits
        return torch.softmax(logits, dim=-1)[0, 1].item()


def get_reward_model(config: dict[str, Any]) -> CustomPRM:
    """Create the reward model. `prm_model_path` is judge.reward_path."""
    return CustomPRM(config["prm_model_path"])
