"""Requests and answers of the completions API of Fireworks, with token ids in and out. No I/O.

The API refuses fields that it does not know. It has no stop token ids, so `ignore_eos` is set, and `stop_at_token` ends
a reply here. `logprob` is log softmax(logits), whatever the temperature (convention "raw").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from openclaw_rl.engines.remote import completions_api
from openclaw_rl.engines.remote.completions_api import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from openclaw_rl.engines.remote.http_client import error_from_event
from openclaw_rl.errors import EngineError, GrammarError, SamplingUnsupported
from openclaw_rl.types import Chunk, Ids, Sampling

MAX_ALTERNATIVES = 5
_MAX_TOP_K = 100


class _Alternative(msgspec.Struct):
    token_id: int
    logprob: float


class _Token(msgspec.Struct):
    token_id: int
    logprob: float
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _RawOutput(msgspec.Struct):
    grammar: str | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    raw_output: _RawOutput | None = None


class _Response(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None
    usage: dict[str, Any] | None = None


_response_decoder = msgspec.json.Decoder(_Response)


def check_sampling(sampling: Sampling, top_logprobs: int) -> None:
    """Raise `SamplingUnsupported` for what the service cannot sample by, `GrammarError` for a grammar."""
    if sampling.grammar is not None:
        raise GrammarError(
            "Fireworks takes no llguidance grammar: it cannot force this format or tool call"
        )
    if sampling.min_tokens:
        raise SamplingUnsupported("Fireworks has no min_tokens: leave it out of the request")
    if sampling.top_k > _MAX_TOP_K:
        raise SamplingUnsupported(
            f"Fireworks takes a top_k of at most {_MAX_TOP_K}, or 0 for all: got {sampling.top_k}"
        )
    if top_logprobs > MAX_ALTERNATIVES:
        raise SamplingUnsupported(
            f"Fireworks returns at most {MAX_ALTERNATIVES} alternatives: got {top_logprobs}"
        )


def request_body(
    model: str, prompt: Ids | Sequence[int], sampling: Sampling, *, limit: int = 1, top: int = 0
) -> dict[str, Any]:
    """Return a request body."""
    return completions_api.sampling_fields(sampling) | {
        "model": model,
        "prompt": [int(i) for i in prompt],
        "max_tokens": limit,
        "top_k": max(sampling.top_k, 0),
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": top,
        "return_token_ids": True,
        "context_length_exceeded_behavior": "error",
    }


def decode_event(raw: bytes) -> CompletionResponse:
    """Decode one event or one whole answer. Raises `EngineError` for an error, and for ids that contradict."""
    try:
        response = _response_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"the engine's answer is not a completion of Fireworks ({error}): {raw[:200]!r}"
        ) from None
    if response.error is not None:
        raise error_from_event(response.error)
    return CompletionResponse(
        choices=[_to_choice(choice) for choice in response.choices], usage=response.usage
    )


def forced_grammar(answer: Any) -> str | None:
    """Return the grammar that the service forced on a reply, from an answer to a request with `raw_output`."""
    response = msgspec.convert(answer, _Response)
    return next(
        (c.raw_output.grammar for c in response.choices if c.raw_output and c.raw_output.grammar),
        None,
    )


def _to_choice(choice: _Choice) -> CompletionChoice:
    """Return the choice as vLLM would send it: ids, log-probabilities, and alternatives by id."""
    tokens = _scored_tokens(choice)
    ids = [token.token_id for token in tokens]
    if choice.token_ids is not None and choice.token_ids != ids:
        raise EngineError(
            f"Fireworks returned the token ids {choice.token_ids[:8]} and log-probabilities of {ids[:8]}; expected the "
            "same ids"
        )
    logprobs = CompletionLogprobs(
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[_alternatives_by_id(token) for token in tokens],
    )
    return CompletionChoice(
        text=choice.text, token_ids=ids, logprobs=logprobs, finish_reason=choice.finish_reason
    )


def _scored_tokens(choice: _Choice) -> list[_Token]:
    if choice.logprobs is None:
        return []
    return choice.logprobs.content or []


def _alternatives_by_id(token: _Token) -> dict[str, float | None]:
    return {f"token_id:{other.token_id}": other.logprob for other in token.top_logprobs or ()}


def stop_at_token(chunk: Chunk, stop_token_ids: Sequence[int]) -> Chunk:
    """Return the chunk up to its first stop token, which ends the reply; the whole chunk if it has none."""
    end = next((n for n, token in enumerate(chunk.token_ids) if token in stop_token_ids), None)
    if end is None:
        return chunk
    length = end + 1
    return replace(
        chunk,
        token_ids=chunk.token_ids[:length],
        logprobs=chunk.logprobs[:length],
        top=chunk.top[:length],
        finish="stop",
    )


def echoed_logprobs(answer: Any, response_ids: Ids) -> list[float]:
    """Return [R] of the end of the prompt, from a request with `echo_last` R. Raises `EngineError`."""
    choice = completions_api.single_choice(answer)
    wanted = [int(i) for i in response_ids]
    echoed_ids = completions_api.token_ids_of(choice)[: len(wanted)]
    echoed = choice.logprobs.token_logprobs if choice.logprobs is not None else []
    logprobs = [
        float(value)
        for value in echoed[: len(wanted)]
        if value is not None and math.isfinite(value)
    ]
    if echoed_ids != wanted or len(logprobs) != len(wanted):
        raise EngineError(
            f"Fireworks scored the tokens {echoed_ids[:8]}, expected {wanted[:8]} with a log-probability each"
        )
    return logprobs
