"""Requests and answers of SGLang's `/generate` with token ids in and out. No I/O.

Written from SGLang 0.5.9, 0.5.14 and 0.5.23 (`srt/managers/io_struct.py`, `tokenizer_manager.py`, `sampling_params.py`,
`schedule_batch.py`); `tests/engines/sglang_server.py` implements the server side and cites the source of each fact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw_rl.engines.remote.http_client import error_from_event
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.types import Chunk, Generation, Ids, Sampling

ScoredToken = tuple[float | None, int, str | None]
"""(log-probability, token id, text if requested)"""


class SglangMeta(msgspec.Struct):
    finish_reason: dict[str, Any] | None = None
    completion_tokens: int = 0  # in the whole reply so far, not only in the event
    cached_tokens: int = 0
    weight_version: str | None = None  # name of the full weights that gave these tokens
    output_token_logprobs: list[ScoredToken] = []
    output_top_logprobs: list[list[ScoredToken] | None] = []
    output_token_ids_logprobs: list[list[ScoredToken] | None] = []
    input_token_logprobs: list[ScoredToken] = []


class SglangAnswer(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: SglangMeta = msgspec.field(default_factory=SglangMeta)
    error: Any = None


_answer_decoder = msgspec.json.Decoder(SglangAnswer)


def sampling_params(sampling: Sampling, *, limit: int, stop: Sequence[int] = ()) -> dict[str, Any]:
    """Return `SamplingParams` with every value set, because the server fills in its own defaults.

    `ignore_eos` disables the stop ids too, so it is set only without stop ids. With them, the model's own eos also ends
    the reply.
    """
    params: dict[str, Any] = {
        "max_new_tokens": limit,
        "temperature": max(sampling.temperature, 0.0),
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(stop) or None,
        "ignore_eos": not stop,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.min_tokens:
        params["min_new_tokens"] = sampling.min_tokens
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.logit_bias:
        params["logit_bias"] = {str(i): bias for i, bias in sampling.logit_bias.items()}
    if sampling.grammar is not None:
        # The llguidance backend also accepts its Lark format here.
        params["ebnf"] = sampling.grammar
    return params


def streaming_body(
    generation: Generation, *, adapter: str | None, limit: int, rid: str
) -> dict[str, Any]:
    """Return the request body for one streamed reply. `rid` must not be a prefix of another: aborts match prefixes."""
    params = sampling_params(generation.sampling, limit=limit, stop=generation.stop_token_ids)
    top = generation.top_logprobs
    return _request_body(generation.prompt_ids, params, adapter) | {
        "stream": True,
        "rid": rid,
        "top_logprobs_num": top,
    }


def scoring_body(whole: Ids, start: int, *, adapter: str | None) -> dict[str, Any]:
    """Return the request body that scores `whole[start:]` at temperature 1 and samples nothing."""
    params = sampling_params(Sampling(), limit=0)
    return _request_body(whole, params, adapter) | {"logprob_start_len": start - 1}


def next_token_body(
    prompt: Ids, token: int, temperature: float, *, adapter: str | None
) -> dict[str, Any]:
    """Return the request body for the log-probability of `token` as the token after `prompt`.

    `token_ids_logprob` applies to all positions, so the tokens of a response need one request each.
    """
    params = sampling_params(Sampling(temperature=temperature), limit=1)
    # Without a start, the token is scored at the prompt's last position too.
    extra = {"logprob_start_len": len(prompt), "token_ids_logprob": [token]}
    return _request_body(prompt, params, adapter) | extra


def _request_body(prompt: Ids, params: dict[str, Any], adapter: str | None) -> dict[str, Any]:
    body = {
        "input_ids": [int(i) for i in prompt],
        "sampling_params": params,
        "return_logprob": True,
        "stream": False,
    }
    return body if adapter is None else body | {"lora_path": adapter}


def decode_event(raw: bytes) -> SglangAnswer:
    """Decode one event. Raises `EngineError` for an error event."""
    try:
        answer = _answer_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"the engine's answer is not in SGLang's format ({error}): {raw[:200]!r}"
        ) from None
    if answer.error is not None:
        raise error_from_event(answer.error)
    return answer


def parse_answer(value: Any) -> SglangAnswer:
    """Validate an answer that was not streamed. Raises `EngineError`."""
    try:
        return msgspec.convert(value, SglangAnswer)
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's answer is not in SGLang's format ({error})") from None


class SglangReplyReader:
    """Reader for one streamed reply, whose events have either all tokens so far or only the new ones.

    All tokens are the server's default. With `--incremental-streaming-output` an event has only the new ids, and from
    0.5.14 on only the new log-probabilities. `completion_tokens` counts all tokens in both modes and so shows the new.
    """

    def __init__(self, top: int) -> None:
        self._top_count = top
        self._tokens_seen = 0
        self._is_first_chunk = True
        self.weight_tags: set[str | None] = set()
        """Names of the full weights that gave the tokens so far."""

    def read_events(self, events: Sequence[bytes]) -> Chunk | None:
        """Return the events of one read as one chunk; None if they have no token and no finish reason.

        Raises `EngineError` if tokens are missing, `EngineGone` if the server aborted the reply.
        """
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[tuple[tuple[int, float], ...]] = []
        finish: str | None = None
        cached = 0
        for raw in events:
            answer = decode_event(raw)
            meta = answer.meta_info
            self.weight_tags.add(meta.weight_version)
            finish = _finish_reason(meta.finish_reason)
            total = meta.completion_tokens
            scored = self._new_tokens(meta.output_token_logprobs, total, "log-probabilities")
            fresh = self._new_tokens(answer.output_ids, total, "token ids")
            if [i for _, i, _ in scored] != fresh:
                raise EngineError(
                    "the engine's log-probabilities and token ids are of different tokens"
                )
            if self._top_count:
                alternatives = self._new_tokens(meta.output_top_logprobs, total, "alternatives")
                tops += [
                    tuple((i, _nan_if_none(lp)) for lp, i, _ in (entry or ())[: self._top_count])
                    for entry in alternatives
                ]
            ids += fresh
            logprobs += [_nan_if_none(lp) for lp, _, _ in scored]
            cached = meta.cached_tokens
            self._tokens_seen = total
        if not ids and finish is None:
            return None
        first = self._is_first_chunk
        self._is_first_chunk = False
        return Chunk(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            top=tuple(tops),
            finish=finish,
            cached=cached if first else 0,
        )

    def _new_tokens(self, entries: list[Any], total: int, what: str) -> list[Any]:
        """Return the entries of the tokens that were not seen yet."""
        fresh = total - self._tokens_seen
        if fresh >= 0 and len(entries) >= total:
            return entries[self._tokens_seen : total]
        if len(entries) == fresh:
            return entries
        raise EngineError(
            f"the engine streamed {len(entries)} {what} where {fresh} of {total} are new: tokens were lost. "
            "Start SGLang without --stream-output, or use 0.5.14 or newer"
        )


def _finish_reason(reason: dict[str, Any] | None) -> str | None:
    """Return `stop`, `length` or None. Raises `EngineError` or `EngineGone` if the server aborted the reply."""
    if reason is None:
        return None
    kind = reason.get("type")
    if kind in ("stop", "length"):
        return str(kind)
    message = str(reason.get("message") or kind)
    status = reason.get("status_code")
    if isinstance(status, int) and 400 <= status < 500:
        raise EngineError(message)
    raise EngineGone(f"the engine aborted the reply ({message}). Repeat the request")


def _nan_if_none(logprob: float | None) -> float:
    return math.nan if logprob is None else logprob


def prompt_logprobs(answer: SglangAnswer, ids: Sequence[int], where: str) -> list[float]:
    """Return the log-probabilities of the scored `ids`. Raises `EngineError` if the answer has other ids.

    The entry before them has no log-probability. SGLang returns the last id of the vocabulary, its image mark, as 0.
    """
    entries = answer.meta_info.input_token_logprobs
    same = len(entries) == len(ids) + 1 and all(
        lp is not None and i in (int(sent), 0)
        for (lp, i, _), sent in zip(entries[1:], ids, strict=True)
    )
    if not same:
        raise EngineError(
            f"the engine at {where} scored {max(len(entries) - 1, 0)} tokens, or others, of {len(ids)} sent"
        )
    return [_nan_if_none(lp) for lp, _, _ in entries[1:]]


def given_token_logprob(answer: SglangAnswer, token: int, where: str) -> float:
    """Return the log-probability of `token` from an answer to `next_token_body`. Raises `EngineError`."""
    rows = answer.meta_info.output_token_ids_logprobs
    logprobs = {i: _nan_if_none(lp) for lp, i, _ in (rows[0] or ())} if rows else {}
    if token not in logprobs:
        raise EngineError(f"the engine at {where} does not score given ids (token_ids_logprob)")
    return logprobs[token]
