"""The official client, unmodified, against the real app on a socket."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import openai
import pytest
from tests.serve.conftest import SCOPE, TOOLS, USER, Site, Start, statuses, wait_for

from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import ExchangeStatus, FinishReason, Kind

MODEL = "openclaw"


def test_a_whole_reply(site: Site) -> None:
    ids = site.script.say("Hello there, é 😀.")
    reply = site.client().chat.completions.create(model=MODEL, messages=[USER], user="ann")
    assert reply.choices[0].message.content == "Hello there, é 😀."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.system_fingerprint == "v0"
    assert reply.model == MODEL
    kept = site.get(reply.id)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (
        len(kept.request.prompt_ids),
        len(ids),
    )
    assert kept.reply is not None
    assert kept.reply.status is ExchangeStatus.DONE
    assert kept.reply.response_ids.tolist() == ids
    assert kept.reply.logprobs.tolist() == pytest.approx(
        [ScriptedEngine.token_logprob(i, 0) for i in ids]
    )
    assert kept.reply.mask.all()
    assert kept.reply.finish_reason is FinishReason.STOP
    assert (kept.request.scope, kept.request.user) == (SCOPE, "ann")
    assert kept.request.prompt_ids.tolist() == site.renderer.render([USER]).prompt_ids.tolist()


def test_a_streamed_reply(site: Site) -> None:
    site.script.say("One two three, é 😀.")
    stream = site.client().chat.completions.create(
        model=MODEL, messages=[USER], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == "One two three, é 😀."
    )
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(site.script.ids)
    assert len({c.id for c in chunks}) == 1


def test_the_first_chunk_leaves_before_the_last_token_is_sampled(start: Start) -> None:
    site = start(delay=0.02)
    site.script.say("a b c d e f g h")
    stream = site.client().chat.completions.create(model=MODEL, messages=[USER], stream=True)
    first = next(iter(stream))
    assert first.choices[0].delta.content
    assert site.engine.running[0] == 1
    assert statuses(site) == [ExchangeStatus.RUNNING]  # admitted before the first byte
    stream.close()


def test_the_finish_leaves_when_the_exchange_is_durable(site: Site) -> None:
    client = site.client()
    for _ in range(10):
        for chunk in client.chat.completions.create(model=MODEL, messages=[USER], stream=True):
            if chunk.choices and chunk.choices[0].finish_reason:
                reply = site.get(chunk.id).reply
                assert reply is not None
                assert reply.status is ExchangeStatus.DONE


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\u0072is"}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls(site: Site, stream: bool) -> None:
    site.script.say(f"Let me look.\n{CALL}\n{CALL}")
    answer = site.client().chat.completions.create(
        model=MODEL, messages=[USER], tools=TOOLS, stream=stream
    )
    if stream:
        chunks = list(answer)
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        assert [c.index for c in calls] == [0, 1]
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        calls, text = answer.choices[0].message.tool_calls, answer.choices[0].message.content
        finish = answer.choices[0].finish_reason
    assert text == "Let me look."
    assert finish == "tool_calls"
    assert [json.loads(c.function.arguments) for c in calls] == [{"city": "Paris"}] * 2
    assert len({c.id for c in calls}) == 2
    assert all(c.id.startswith("call_") and len(c.id) == 29 for c in calls)


def test_without_tools_a_call_is_text(site: Site) -> None:
    site.script.say(CALL)
    for asked in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        reply = site.client().chat.completions.create(model=MODEL, messages=[USER], **asked)
        assert reply.choices[0].message.content == CALL
        assert not reply.choices[0].message.tool_calls


def test_reasoning(start: Start) -> None:
    site = start("thinking")
    site.script.say("Two and two.\n</think>\n\nFour.")
    reply = site.client().chat.completions.create(model=MODEL, messages=[USER])
    assert reply.choices[0].message.reasoning_content == "Two and two."
    assert reply.choices[0].message.content == "Four."
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert (
        0
        < (reply.usage.completion_tokens_details.reasoning_tokens or 0)
        < reply.usage.completion_tokens
    )


def test_a_stop_string_cuts_and_masks(site: Site) -> None:
    site.script.say("The quick brown fox jumps over")
    reply = site.client().chat.completions.create(
        model=MODEL, messages=[USER], stop=["brown", "zzz"]
    )
    assert reply.choices[0].message.content == "The quick "
    assert reply.choices[0].finish_reason == "stop"
    kept = site.get(reply.id).reply
    assert kept is not None
    said = site.renderer.tokenizer.backend.decode(kept.response_ids[kept.mask].tolist())
    assert said.startswith("The quick brown")
    wait_for(lambda: site.engine.running[0], lambda n: n == 0)


def test_length(site: Site) -> None:
    reply = site.client().chat.completions.create(
        model=MODEL, messages=[USER], max_completion_tokens=2
    )
    assert reply.choices[0].finish_reason == "length"
    assert site.engine.calls[-1].sampling.max_tokens == 2
    site.client().chat.completions.create(model=MODEL, messages=[USER])
    last = site.engine.calls[-1]
    assert last.sampling.max_tokens == 2048 - len(last.prompt_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(site: Site, stream: bool) -> None:
    ids = site.script.say("é 😀 is")
    answer = site.client().chat.completions.create(
        model=MODEL, messages=[USER], logprobs=True, top_logprobs=2, stream=stream
    )
    if stream:
        content = [
            t
            for c in answer
            if c.choices and c.choices[0].logprobs
            for t in c.choices[0].logprobs.content
        ]
    else:
        content = answer.choices[0].logprobs.content
    assert [t.logprob for t in content] == pytest.approx(
        [ScriptedEngine.token_logprob(i, 0) for i in ids[:-1]]
    )
    assert bytes(b for t in content for b in t.bytes).decode() == "é 😀 is"
    assert all(len(t.top_logprobs) == 2 for t in content)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_end_where_the_text_ends(site: Site, stream: bool) -> None:
    """Of a stop string, no token is reported but the one that the text before it ends in; all are stored."""
    ids = site.script.say("The quick brown fox jumps over")
    describe, count = site.renderer.detokenizer.decode_token, 0
    for stop, shown in (
        ("brown fox", "The quick "),
        ("The", ""),
        ("ick br", "The qu"),
        ("none", ""),
    ):
        answer = site.client().chat.completions.create(
            model=MODEL, messages=[USER], logprobs=True, stop=stop, stream=stream
        )
        if stream:
            chunks = [c.choices[0] for c in answer if c.choices]
            content = [t for c in chunks if c.logprobs for t in c.logprobs.content]
            text = "".join(c.delta.content or "" for c in chunks)
        else:
            content, text = answer.choices[0].logprobs.content, answer.choices[0].message.content
        if stop == "none":
            assert [bytes(t.bytes) for t in content] == [bytes(describe(i)[1]) for i in ids[:-1]]
            continue
        assert text == shown
        told = "".join(t.token for t in content)
        assert told.startswith(shown)
        assert not content or len("".join(t.token for t in content[:-1])) < len(shown)
        count += 1
        stored = site.last().reply
        assert stored is not None
        assert len(stored.response_ids) > len(content)
    assert count == 3


def test_log_probabilities_that_are_no_numbers_are_no_reply(start: Start) -> None:
    class Broken(ScriptedEngine):
        @staticmethod
        def logprob(token: int, version: int, temperature: float = 1.0) -> float:
            return float("nan")

    site = start()
    site.engine.token_logprob = Broken.logprob  # type: ignore[method-assign]
    for stream in (False, True):
        with pytest.raises(openai.APIError, match="not finite numbers"):
            list(site.client().chat.completions.create(model=MODEL, messages=[USER], stream=stream))
    wait_for(lambda: statuses(site), lambda s: s == [ExchangeStatus.FAILED] * 2)
    kept = site.last().reply
    assert kept is not None
    assert "not finite numbers" in (kept.error or "")


def test_a_temperature_near_zero_is_greedy(start: Start) -> None:
    site = start()
    for temperature, stored in ((1e-300, 0.0), (0.0099, 0.0), (0.01, 0.01), (0, 0.0)):
        reply = site.client().chat.completions.create(
            model=MODEL, messages=[USER], temperature=temperature
        )
        sampling = site.get(reply.id).request.sampling
        assert sampling.temperature == stored
        assert (sampling.untrainable_reason() is None) == (stored > 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels(start: Start, stream: bool) -> None:
    site = start(delay=0.05)
    ids = site.script.say("one two three " * 40)

    async def leave() -> None:
        async with site.async_client() as client:
            if stream:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=[USER], stream=True
                )
                async for _ in answer:
                    break
                await answer.close()
                return
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=2.0).chat.completions.create(
                    model=MODEL, messages=[USER]
                )

    asyncio.run(leave())
    kept = site.ended(site.last().request.id).reply
    assert kept is not None
    assert kept.status is ExchangeStatus.CANCELLED
    assert kept.finish_reason is None
    got = kept.response_ids.tolist()
    assert 0 < len(got) < len(ids)
    assert got == ids[: len(got)]
    assert kept.message["content"] == site.renderer.tokenizer.backend.decode(got)
    wait_for(lambda: site.engine.running[0], lambda n: n == 0)


def test_headers_and_body_say_what_it_is(site: Site) -> None:
    client = site.client()
    first = client.chat.completions.create(
        model=MODEL,
        messages=[USER],
        extra_headers={
            "X-Session-Id": "s1",
            "X-Turn-Type": "side",
            "X-Session-Done": "true",
            "X-Agent-Id": "a1",
        },
        extra_body={"session_id": "not this"},
    )
    kept = site.get(first.id).request
    assert (kept.session, kept.kind, kept.session_done, kept.agent) == ("s1", Kind.SIDE, True, "a1")
    second = client.chat.completions.create(
        model=MODEL,
        messages=[USER],
        extra_body={"session_id": "s2", "turn_type": "main", "unknown": {"x": 1}},
    )
    kept = site.get(second.id).request
    assert (kept.session, kept.kind, kept.session_done) == ("s2", Kind.MAIN, False)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("serve.sampling_override.temperature", 0.9, 0.9),
        ("serve.sampling_override.temperature", 1e-9, 0.0),
        ("serve.sampling_override.top_p", 0.25, 0.25),
        ("serve.sampling_override.top_k", 5, 5),
        ("serve.sampling_override.top_k", -1, 0),
        ("serve.sampling_override.min_p", 0.125, 0.125),
        ("serve.sampling_override.presence_penalty", 0.5, 0.5),
        ("serve.sampling_override.frequency_penalty", 0.5, 0.5),
        ("serve.sampling_override.seed", 3, 3),
        ("serve.sampling_override.max_tokens", 4, 4),
    ],
)
def test_the_owner_may_override_the_sampling(
    start: Start, key: str, value: float, expected: float
) -> None:
    site, name = start(settings={key: value}), key.rpartition(".")[2]
    asked = {
        "temperature": 0.5,
        "top_p": 0.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.25,
        "seed": 7,
    }
    reply = site.client().chat.completions.create(
        model=MODEL, messages=[USER], max_tokens=8, extra_body={**asked, "top_k": 3, "min_p": 0.25}
    )
    sampling = site.get(reply.id).request.sampling
    values = {"top_k": 3, "min_p": 0.25, "max_tokens": 8, **asked, name: expected}
    assert {key: getattr(sampling, key) for key in values} == values


def test_many_at_once(start: Start) -> None:
    site = start(delay=0.001)
    site.script.say("one two three")

    async def all_of_them() -> list[str | None]:
        async with site.async_client() as client:
            asked = [
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"n{i}"}]
                )
                for i in range(32)
            ]
            return [r.choices[0].message.content for r in await asyncio.gather(*asked)]

    assert asyncio.run(all_of_them()) == ["one two three"] * 32
    assert statuses(site) == [ExchangeStatus.DONE] * 32
    assert np.unique([len(site.last().request.prompt_ids)]).size == 1
