"""Log-probabilities of the teacher: the base at an SGLang server (`--rm-url`), under the prompt with a hint."""

from __future__ import annotations

import json
import logging
import math
import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.error import HTTPError, URLError

from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.retries.backoff import backoff_delay, retry_after_seconds

log = logging.getLogger(__name__)
RETRIES = 12
"""Retries of a request, after two to four minutes of waiting: a server that starts again has loaded its model."""
RETRY_WITHIN_SECONDS = 300.0
"""Seconds after the first attempt in which the last one begins."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
# Seconds of one attempt.
_TIMEOUT = 300.0


class TeacherUnfit(Exception):
    """Raised when the server does not give the log-probabilities of the tokens that it was sent."""


class _AttemptFailed(Exception):
    """Raised when an attempt had no answer. `wait`: delay in seconds that the server requests."""

    def __init__(self, message: str, *, retryable: bool, wait: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.wait = wait


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
        scored = answer["meta_info"]["input_token_logprobs"][-len(reply) :]
        logprobs = [entry[0] for entry in scored]
        scored_ids = [entry[1] for entry in scored]
    except (KeyError, TypeError, IndexError) as error:
        raise TeacherUnfit(
            f"{url} is no /generate of SGLang: its answer has no input_token_logprobs"
        ) from error
    if not _are_of_reply(scored_ids, reply) or not all(map(_is_finite, logprobs)):
        raise TeacherUnfit(
            f"{url} gave no log-probabilities of the {len(reply)} tokens that it was sent"
        )
    return logprobs


def _are_of_reply(scored_ids: Sequence[Any], reply: Sequence[int]) -> bool:
    """Return whether scores are of these tokens. SGLang names the last id of the vocabulary, its image mark, as 0."""
    if len(scored_ids) != len(reply):
        return False
    return all(scored in (id_, 0) for scored, id_ in zip(scored_ids, reply, strict=True))


def _is_finite(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def post_json(url: str, body: dict[str, Any]) -> Any:
    """Send a request and return the answer. Raises `TeacherUnfit` if none comes.

    Connection errors, 429 and 5xx are retried with backoff, at most `RETRIES` times and for `RETRY_WITHIN_SECONDS`.
    """
    content = json.dumps(body).encode()
    began = time.monotonic()
    failures = 0
    while True:
        try:
            return _send_request(url, content)
        except _AttemptFailed as error:
            failures += 1
            pause = _retry_delay(error, failures)
            seconds = time.monotonic() - began
            if not error.retryable or failures > RETRIES or seconds + pause > RETRY_WITHIN_SECONDS:
                tried = ""
                if failures > 1:
                    tried = f" ({failures} attempts in {seconds:.0f} s)"
                raise TeacherUnfit(
                    f"{url}: {error}{tried}. Expected an SGLang server with the base. Start it, or correct --rm-url, "
                    "and start slime again: the turns stay in the queue"
                ) from error
            log.warning("the teacher at %s: %s. Retrying in %.1f s", url, error, pause)
        time.sleep(pause)


def _retry_delay(error: _AttemptFailed, failures: int) -> float:
    backoff = backoff_delay(failures, first=FIRST_RETRY_SECONDS, longest=LONGEST_RETRY_SECONDS)
    return backoff if error.wait is None else error.wait + backoff * 0.1


def _send_request(url: str, content: bytes) -> Any:
    """Return the answer of one attempt. Raises `_AttemptFailed`."""
    try:
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with open_url(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        error.close()
        raise _AttemptFailed(
            f"HTTP {error.code} {error.reason}".rstrip(),
            retryable=error.code == 429 or error.code >= 500,
            wait=retry_after_seconds(error.headers.get("Retry-After")),
        ) from None
    except URLError as error:
        # Its reason is a text if the address has a wrong form.
        raise _AttemptFailed(
            str(error.reason), retryable=isinstance(error.reason, OSError)
        ) from error
    except (ValueError, InvalidURL) as error:
        raise _AttemptFailed(str(error), retryable=False) from error
    except (OSError, HTTPException) as error:
        raise _AttemptFailed(
            f"connection failed: {str(error) or type(error).__name__}", retryable=True
        ) from error
