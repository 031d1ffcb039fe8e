"""Requests and answers of vLLM's `/v1/completions` with token ids in and out. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.engines.remote.http_client import error_from_event
from openclaw_rl.errors import EngineError, EngineGone, NoTokenIds
from openclaw_rl.types import Chunk, Generation, Ids, Sampling

TopLogprobs = tuple[tuple[int, float], ...]
_ID_PREFIX = "token_id:"


class CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float | None] | None] = []


class CompletionChoice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None


class CompletionResponse(msgspec.Struct):
    choices: list[CompletionChoice] = []
    error: Any = None
    usage: dict[str, Any] | None = None


_response_decoder = msgspec.json.Decoder(CompletionResponse)


def request_body(
    model: str,
    prompt: Ids | Sequence[int],
    sampling: Sampling,
    *,
    limit: int = 1,
    stop: Sequence[int] = (),
    top: int = 0,
) -> dict[str, Any]:
    """Return a request body. The gateway handles stop strings; eos stops a reply only if it is in `stop`."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": [int(i) for i in prompt],
        "max_tokens": limit,
        "top_k": sampling.top_k,
        "stop_token_ids": list(stop),
        "ignore_eos": True,
        "logprobs": top,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }
    if sampling.min_tokens:
        body["min_tokens"] = sampling.min_tokens
    return body | sampling_fields(sampling)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling values that servers name alike. All are given, because a model may have its own defaults."""
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": 1.0,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.logit_bias:
        fields["logit_bias"] = {str(i): b for i, b in sampling.logit_bias.items()}
    return fields


def streaming_body(generation: Generation, *, model: str, limit: int) -> dict[str, Any]:
    """Return the request body for one streamed reply."""
    stop = generation.stop_token_ids
    top = generation.top_logprobs
    body = request_body(
        model, generation.prompt_ids, generation.sampling, limit=limit, stop=stop, top=top
    )
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def decode_event(raw: bytes) -> CompletionResponse:
    """Decode one event or one whole answer. Raises `EngineError` for an error event."""
    try:
        response = _response_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"the engine's answer is not a completion ({error}): {raw[:200]!r}"
        ) from None
    if response.error is not None:
        raise error_from_event(response.error)
    return response


def single_choice(answer: Any) -> CompletionChoice:
    """Return the only choice of a whole answer. Raises `EngineError` if the answer has another shape."""
    try:
        response = msgspec.convert(answer, CompletionResponse)
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's answer is not a completion ({error})") from None
    if len(response.choices) != 1:
        raise EngineError(f"the engine's answer has {len(response.choices)} choices, expected 1")
    return response.choices[0]


def chunk_from_events(events: Sequence[CompletionResponse], top: int) -> Chunk | None:
    """Return the decoded events of one read as one chunk; None if they have no token and no finish reason.

    Raises `EngineError` if ids or log-probabilities are missing, `EngineGone` if the server aborted the reply.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    tops: list[TopLogprobs] = []
    finish: str | None = None
    for choice in (choice for event in events for choice in event.choices):
        finish = choice.finish_reason or finish
        choice_ids = token_ids_of(choice)
        if choice_ids:
            ids += choice_ids
            logprobs += _token_logprobs(choice, len(choice_ids))
            tops += _alternatives_of(choice, top)
    if finish not in (None, "stop", "length"):
        raise EngineGone(f"the engine aborted the reply ({finish}). Repeat the request")
    if not ids and finish is None:
        return None
    return Chunk(token_ids=tuple(ids), logprobs=tuple(logprobs), top=tuple(tops), finish=finish)


def cached_prompt_tokens(last: CompletionResponse) -> int:
    """Return how many prompt tokens came from the server's prefix cache, read from the last event."""
    details = (last.usage or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def token_ids_of(choice: CompletionChoice) -> list[int]:
    """Return the token ids. Servers without `return_token_ids` send them as token strings, `token_id:N`."""
    if choice.token_ids is not None:
        return choice.token_ids
    tokens = choice.logprobs.tokens if choice.logprobs is not None else []
    has_other_tokens = any(not token.startswith(_ID_PREFIX) for token in tokens)
    if has_other_tokens or (choice.text and not tokens):
        raise NoTokenIds(
            "the engine returns no token ids, so it cannot serve the policy. Serve it with vLLM or SGLang, "
            "or use this endpoint as a judge (judge.base_url)"
        )
    return [int(token.removeprefix(_ID_PREFIX)) for token in tokens]


def _token_logprobs(choice: CompletionChoice, expected: int) -> list[float]:
    logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
    if len(logprobs) != expected:
        raise EngineError(
            f"the engine returned {len(logprobs)} log-probabilities for {expected} tokens"
        )
    return [math.nan if value is None else value for value in logprobs]


def _alternatives_of(choice: CompletionChoice, top: int) -> list[TopLogprobs]:
    """Return the `top` likeliest alternatives of each position, to which a server may add the sampled id."""
    if top == 0 or choice.logprobs is None:
        return []
    return [top_alternatives(entry or {}, top) for entry in choice.logprobs.top_logprobs]


def top_alternatives(entry: Mapping[str, float | None], top: int | None = None) -> TopLogprobs:
    """Return (token id, log-probability) pairs of one position, likeliest first."""
    alternatives = [
        (int(name.removeprefix(_ID_PREFIX)), math.nan if lp is None else lp)
        for name, lp in entry.items()
    ]
    return tuple(sorted(alternatives, key=lambda pair: -pair[1])[:top])


def prompt_logprobs(choice: CompletionChoice, ids: Ids | Sequence[int], start: int) -> list[float]:
    """Return the log-probabilities of `ids[start:]` from a request with `prompt_logprobs`. Raises `EngineError`."""
    entries = choice.prompt_logprobs or []
    if len(entries) != len(ids):
        raise EngineError(f"the engine scored {len(entries)} prompt tokens, expected {len(ids)}")
    return [
        float((entry or {})[str(int(i))]["logprob"])
        for i, entry in zip(ids[start:], entries[start:], strict=True)
    ]
