"""Log-probabilities of the teacher: the base at an SGLang server (`--rm-url`), under the prompt with a hint."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

_TIMEOUT = 300.0  # seconds


class TeacherUnfit(Exception):
    """Raised when the server does not give the log-probabilities of the tokens that it was sent."""


def score_reply(url: str, prompts: Sequence[Sequence[int]], reply: Sequence[int]) -> list[float]:
    """Return [R] log-probabilities of the reply at temperature 1: of several prompts, of their even mixture."""
    scored = [_score_prompt(url, prompt, reply) for prompt in prompts]
    if len(scored) == 1:
        return scored[0]
    return [_log_mean(column) for column in zip(*scored, strict=True)]


def _log_mean(logprobs: Sequence[float]) -> float:
    most = max(logprobs)
    return most + math.log(sum(math.exp(value - most) for value in logprobs) / len(logprobs))


def _score_prompt(url: str, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
    body = {
        "input_ids": [*prompt, *reply],
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
    }
    answer = post_json(url, body)
    try:
        # SGLang names the last id of the vocabulary, its image mark, as 0.
        scored = answer["meta_info"]["input_token_logprobs"][-len(reply) :]
        logprobs = [entry[0] for entry in scored]
        same = len(scored) == len(reply) and all(e[1] in (i, 0) for e, i in zip(scored, reply, strict=True))
    except (KeyError, TypeError, IndexError) as error:
        raise TeacherUnfit(f"{url} is no /generate of SGLang: its answer has no input_token_logprobs") from error
    if not same or not all(isinstance(value, float | int) and math.isfinite(value) for value in logprobs):
        raise TeacherUnfit(f"{url} gave no log-probabilities of the {len(reply)} tokens that it was sent")
    return logprobs


def post_json(url: str, body: dict[str, Any]) -> Any:
    """Send a request and return the answer. Raises `TeacherUnfit` if none comes."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError, HTTPException) as error:
        raise TeacherUnfit(f"{url}: {error}. Expected an SGLang server with the base (--rm-url)") from error
