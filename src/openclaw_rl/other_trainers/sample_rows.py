"""Samples as rows of plain JSON values, for a trainer that is another program."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from openclaw_rl.methods.types import Sample


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return the sample with lists for arrays. `logprobs` keep their float32 values: they are read back equal."""
    return {
        "turn": sample.turn,
        "agent": sample.agent,
        "prompt_ids": sample.prompt_ids.tolist(),
        "response_ids": sample.response_ids.tolist(),
        "logprobs": sample.logprobs.tolist(),
        "mask": sample.mask.tolist(),
        "temperature": sample.temperature,
        "version": sample.version,
        "reward": sample.reward,
        "weight": sample.weight,
        "hinted_prompts": [prompt.tolist() for prompt in sample.hinted_prompts],
        "on_policy": sample.on_policy,
        "replay": sample.replay,
        "from_teacher": sample.from_teacher,
        "episode": asdict(sample.episode) if sample.episode is not None else None,
    }
