"""The wire of `/v1/completions` with token ids: what is asked, and what an answer means."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from openclaw_rl.engines.remote import completions_api
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.types import Chunk, Generation, Sampling


def event(**choice: Any) -> bytes:
    return json.dumps({"choices": [choice]}).encode()


def logprobs(
    *pairs: tuple[int, float | None], top: dict[int, float] | None = None
) -> dict[str, Any]:
    names = [f"token_id:{i}" for i, _ in pairs]
    tops = [{f"token_id:{k}": v for k, v in (top or {}).items()} for _ in pairs]
    return {"tokens": names, "token_logprobs": [lp for _, lp in pairs], "top_logprobs": tops}


def test_the_request_turns_off_all_that_is_not_ours() -> None:
    sampling = Sampling(
        temperature=0.7, top_k=3, min_p=0.1, seed=4, logit_bias={7: -1.5}, stop=("never sent",)
    )
    asked = Generation(
        id="g",
        version=1,
        prompt_ids=np.array([3, 4]),
        sampling=sampling,
        stop_token_ids=(2, 9),
        top_logprobs=5,
    )
    body = completions_api.streaming_body(asked, model="openclaw-1-abc", limit=12)
    json.dumps(body)
    expected = {
        "model": "openclaw-1-abc",
        "prompt": [3, 4],
        "max_tokens": 12,
        "ignore_eos": True,
        "stop_token_ids": [2, 9],
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "seed": 4,
        "logit_bias": {"7": -1.5},
        "logprobs": 5,
        "stream": True,
    }
    assert expected.items() <= body.items()
    assert "stop" not in body, "stop strings are the gateway's"
    least = completions_api.request_body(
        model="m", prompt=[1], sampling=Sampling(min_tokens=3), limit=9
    )
    assert least["min_tokens"] == 3
    assert "seed" not in completions_api.request_body(
        model="m", prompt=[1], sampling=Sampling(), limit=1, stop=()
    )


def chunk_of(events: list[bytes], top: int) -> Chunk | None:
    return completions_api.chunk_from_events(
        [completions_api.decode_event(raw) for raw in events], top
    )


def test_events_of_one_read_are_one_chunk() -> None:
    events = [
        event(
            token_ids=[5, 6],
            logprobs=logprobs((5, -0.5), (6, -1.0), top={8: -2.0, 5: -0.5, 9: -3.0}),
        ),
        event(token_ids=[7], logprobs=logprobs((7, -0.25), top={7: -0.25}), finish_reason="stop"),
        json.dumps({"choices": [], "usage": {}}).encode(),
    ]
    assert chunk_of(events, 2) == Chunk(
        token_ids=(5, 6, 7),
        logprobs=(-0.5, -1.0, -0.25),
        top=(((5, -0.5), (8, -2.0)),) * 2 + (((7, -0.25),),),
        finish="stop",
    )
    assert chunk_of([event(token_ids=[], text="")], 0) is None
    assert chunk_of([event(token_ids=[], finish_reason="length")], 0) == Chunk(
        token_ids=(), logprobs=(), finish="length"
    )


def test_ids_may_come_as_the_tokens_names() -> None:
    chunk = chunk_of([event(text="hi", logprobs=logprobs((5, -0.5), (6, None)))], 0)
    assert chunk is not None
    assert chunk.token_ids == (5, 6)
    assert math.isnan(chunk.logprobs[1]), "the gateway refuses what is no number"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"text": "hi"}, "no token ids"),
        ({"text": "hi", "logprobs": {"tokens": ["hi"], "token_logprobs": [-1.0]}}, "no token ids"),
        (
            {"token_ids": [1, 2], "logprobs": logprobs((1, -1.0))},
            "1 log-probabilities for 2 tokens",
        ),
        ({"token_ids": [1]}, "0 log-probabilities for 1 tokens"),
        ({"token_ids": "?"}, "not a completion"),
    ],
)
def test_completions_without_exact_tokens_are_refused(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        chunk_of([event(**choice)], 0)


def test_a_reply_that_the_server_aborted_raises_engine_gone() -> None:
    with pytest.raises(EngineGone, match="abort"):
        chunk_of([event(token_ids=[], finish_reason="abort")], 0)
    with pytest.raises(EngineGone, match="is incomplete"):
        chunk_of(
            [json.dumps({"error": {"message": "EngineCore encountered an issue"}}).encode()], 0
        )
    with pytest.raises(EngineError, match="too long") as caught:
        chunk_of([json.dumps({"error": {"message": "too long", "code": 400}}).encode()], 0)
    assert not isinstance(caught.value, EngineGone)


def test_prompt_scores_are_those_of_the_ids() -> None:
    choice = completions_api.single_choice(
        {
            "choices": [
                {
                    "prompt_logprobs": [
                        None,
                        {"4": {"logprob": -1.0}, "9": {"logprob": 0.0}},
                        {"5": {"logprob": -2}},
                    ]
                }
            ]
        }
    )
    assert completions_api.prompt_logprobs(choice, [3, 4, 5], 1) == [-1.0, -2.0]
    with pytest.raises(EngineError, match="3 prompt tokens, expected 2"):
        completions_api.prompt_logprobs(choice, [3, 4], 1)
    with pytest.raises(EngineError, match="0 choices"):
        completions_api.single_choice({"choices": []})
    with pytest.raises(EngineError, match="not a completion"):
        completions_api.single_choice([1])
