"""SGLang's wire, read and written: every sampling value, every way of streaming, and what is no exact reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.engines.remote import sglang_api
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.types import Sampling


def test_every_sampling_value_is_sent_under_sglangs_name() -> None:
    full = Sampling(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias={3: 1.5}, seed=7, grammar="start: /a/",
    )  # fmt: skip
    params = sglang_api.sampling_params(full, limit=9, stop=(2, 4))
    assert params == {
        "max_new_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.0, "stop_token_ids": [2, 4], "ignore_eos": False,
        "no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "sampling_seed": 7, "logit_bias": {"3": 1.5}, "ebnf": "start: /a/",
    }  # fmt: skip
    plain = sglang_api.sampling_params(Sampling(), limit=9)
    assert (plain["top_k"], plain["stop_token_ids"], plain["ignore_eos"]) == (-1, None, True)
    assert sglang_api.sampling_params(Sampling(min_tokens=3), limit=9)["min_new_tokens"] == 3
    assert plain.keys().isdisjoint({"sampling_seed", "logit_bias", "ebnf", "min_new_tokens"})


def event(ids: list[int], total: int, scored: list[int] | None = None, finish: Any = None) -> bytes:
    logprobs = [[-0.5, i, None] for i in (ids if scored is None else scored)]
    meta = {"completion_tokens": total, "output_token_logprobs": logprobs, "finish_reason": finish}
    return json.dumps({"output_ids": ids, "meta_info": meta}).encode()


LENGTH = {"type": "length", "length": 3}
STREAMS = {
    "cumulative": [event([5], 1), event([5, 6], 2), event([5, 6, 7], 3, finish=LENGTH)],
    "incremental": [event([5], 1), event([6], 2), event([7], 3, finish=LENGTH)],
    "incremental, whole logprobs": [
        event([5], 1), event([6], 2, [5, 6]), event([7], 3, [5, 6, 7], LENGTH),
    ],
    "several tokens at once": [event([5, 6], 2), event([7], 3, finish=LENGTH)],
    "a list that has grown meanwhile": [event([5, 6, 7], 1), event([5, 6, 7], 3, finish=LENGTH)],
    "an empty event first": [event([], 0), event([5, 6, 7], 3, finish=LENGTH)],
}  # fmt: skip


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("together", [False, True])
def test_all_tokens_are_read_once_however_they_are_streamed(
    events: list[bytes], together: bool
) -> None:
    reader = sglang_api.SglangReplyReader(0)
    chunks = [
        reader.read_events(part) for part in ([events] if together else [[e] for e in events])
    ]
    assert [i for c in chunks if c for i in c.token_ids] == [5, 6, 7]
    assert [lp for c in chunks if c for lp in c.logprobs] == [-0.5] * 3
    last = chunks[-1]
    assert last is not None
    assert last.finish == "length"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.sampled_from([0, 1, 2]), st.data())
def test_any_split_in_any_mode_reads_the_same(
    sizes: list[int], mode: int, data: st.DataObject
) -> None:
    """Modes: all so far; new ids and new log-probabilities; new ids and all log-probabilities."""
    ids = data.draw(st.lists(st.integers(0, 9), min_size=sum(sizes), max_size=sum(sizes)))
    events, end = [], 0
    for n, size in enumerate(sizes):
        start, end = end, end + size
        finish = {"type": "stop", "matched": ids[-1]} if n == len(sizes) - 1 else None
        output_ids, scored = ids[start if mode else 0 : end], ids[start if mode == 1 else 0 : end]
        events.append(event(output_ids, end, scored, finish))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events)))) | {len(events)})
    reader = sglang_api.SglangReplyReader(0)
    chunks = [reader.read_events(events[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    assert [i for c in chunks if c for i in c.token_ids] == ids
    assert [c.finish for c in chunks if c] == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event([5], 1), event([8], 4)], "tokens were lost"),
        ([event([5, 6], 2, [5])], "tokens were lost"),
        ([event([5], 1, [6])], "are of different tokens"),
        ([b"<html>"], "not in SGLang's format"),
        ([b'{"error": {"message": "too long"}}'], "too long"),
        (
            [event([], 0, finish={"type": "abort", "message": "bad words", "status_code": 400})],
            "bad words",
        ),
    ],
)
def test_inexact_replies_are_refused(events: list[bytes], words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        sglang_api.SglangReplyReader(0).read_events(events)
    assert not isinstance(caught.value, EngineGone)


@pytest.mark.parametrize("status", [None, 500, 503])
def test_an_abort_without_a_client_error_is_a_broken_stream(status: int | None) -> None:
    finish = {"type": "abort", "message": "Abort by user"} | (
        {"status_code": status} if status else {}
    )
    with pytest.raises(EngineGone, match="Abort by user"):
        sglang_api.SglangReplyReader(0).read_events([event([5], 1, finish=finish)])
