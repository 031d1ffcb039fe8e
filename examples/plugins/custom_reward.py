"""Reward model as a class, created with judge.reward_path; scores several turns in one call.

openclaw-rl up --custom-rm-path examples/plugins/custom_reward.py --rm-checkpoint /path/to/model
"""

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def load_reward_model(checkpoint_path: str):
    """Return a function that maps the tokens of one text to the probability of the last class."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint_path).eval()

    def reward(inputs) -> torch.Tensor:
        return torch.softmax(model(**inputs).logits[0], dim=-1)[-1]

    return reward


class CustomRewardModel:
    """Scores replies by the message that follows them."""

    def __init__(self, checkpoint_path: str) -> None:
        self.model = load_reward_model(checkpoint_path)
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint_path)

    def tokenize(self, text: str):
        """Tokenize one text."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=2048)
        inputs.pop("token_type_ids", None)
        return inputs

    def compute_reward(self, prompt: str, response: str, next_feedback: str) -> float:
        """Return the reward in [0, 1]."""
        inputs = self.tokenize(f"Prompt: {prompt}\nResponse: {response}\nFeedback: {next_feedback}")
        with torch.no_grad():
            return self.model(inputs).item()

    def batch_compute_rewards(self, batch_data) -> torch.Tensor:
        """Return the rewards [B], in the order of the items."""
        rewards = []
        for item in batch_data:
            rewards.append(self.compute_reward(item["prompt"], item["response"], item["feedback"]))
        return torch.tensor(rewards)
