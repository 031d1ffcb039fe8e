"""Text completions: text in, text out, captured and never trained on."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.serve.conftest import USER, Site, wait_for

from openclaw_rl.store import turns
from openclaw_rl.types import ExchangeStatus

MODEL = "openclaw"


def create(site: Site, **body: Any) -> Any:
    return site.client().completions.create(**{"model": MODEL, **body})


def test_text_in_and_text_out(site: Site) -> None:
    said = 'it <think>was</think> <tool_call>{"name": "f"}</tool_call>'
    site.script.say(said)
    reply = create(site, prompt="Once upon a time", max_tokens=100)
    assert (reply.object, reply.choices[0].text, reply.choices[0].finish_reason) == (
        "text_completion",
        said,
        "stop",
    )
    prompt_ids = site.renderer.tokenizer.encode("Once upon a time").tolist()
    assert site.script.seen[-1] == prompt_ids, "no chat template"
    assert reply.usage.prompt_tokens == len(prompt_ids)
    stored = site.get(reply.id)
    assert stored.request.messages == [{"role": "user", "content": "Once upon a time"}]
    assert stored.reply is not None
    assert stored.reply.message == {"role": "assistant", "content": said}
    with site.store.read() as conn:
        turn = turns.get(conn, reply.id)
    assert turn is not None
    assert turn.untrainable == "a text completion (/v1/completions) has no conversation"


def test_token_ids_are_the_prompt(site: Site) -> None:
    ids = site.renderer.tokenizer.encode("a b c").tolist()
    reply = create(site, prompt=ids)
    assert site.script.seen[-1] == ids
    assert site.get(reply.id).request.messages[0]["content"] == "a b c"
    assert site.get(reply.id).request.sampling.max_tokens == 16, "OpenAI's default"


def test_each_prompt_of_a_list_is_an_exchange_with_its_own_choices(site: Site) -> None:
    reply = create(site, prompt=["one", "two"], n=2, echo=True)
    assert [c.text for c in reply.choices] == ["oneHello there."] * 2 + ["twoHello there."] * 2
    assert [c.index for c in reply.choices] == [0, 1, 2, 3]
    prompts = [site.get(c.id).request.messages[0]["content"] for c in reply.choices]
    assert prompts == ["one", "one", "two", "two"]
    assert reply.usage.prompt_tokens == sum(
        len(site.renderer.tokenizer.encode(p)) for p in ("one", "two")
    )


def test_a_refused_prompt_refuses_all_of_its_request(site: Site) -> None:
    with pytest.raises(
        openai.BadRequestError, match="maximum context length is 2048 tokens"
    ) as long:
        create(site, prompt=["one", "word " * 5000])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")
    assert "your prompt resulted in" in long.value.message
    wait_for(site.count, bool)  # the other prompt's exchange is written in the background
    assert site.ended(site.last().request.id).reply.status is ExchangeStatus.CANCELLED


def test_stop_and_log_probabilities(site: Site) -> None:
    site.script.say("one two three")
    reply = create(site, prompt="zero", stop=" three", logprobs=2).choices[0]
    assert (reply.text, reply.finish_reason) == ("one two", "stop")
    assert "".join(reply.logprobs.tokens) == "one two"
    assert (
        len(reply.logprobs.token_logprobs)
        == len(reply.logprobs.top_logprobs)
        == len(reply.logprobs.tokens)
    )
    assert reply.logprobs.text_offset[0] == 0


def test_a_stream(site: Site) -> None:
    options = {"include_usage": True}
    events = list(create(site, prompt="zero", n=2, echo=True, stream=True, stream_options=options))
    for index in range(2):
        texts = [c.text for e in events for c in e.choices if c.index == index]
        assert "".join(texts) == "zeroHello there."
    assert [c.finish_reason for e in events for c in e.choices if c.finish_reason] == [
        "stop",
        "stop",
    ]
    assert events[-1].usage.total_tokens > 0


def test_a_conversation_never_continues_the_tokens_of_a_completion(site: Site) -> None:
    reply = create(site, prompt=USER["content"]).choices[0]
    messages: list[Any] = [
        USER,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": "And?"},
    ]
    site.client().chat.completions.create(model=MODEL, messages=messages)
    assert site.script.seen[-1] == site.renderer.render(messages).prompt_ids.tolist()


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ["a"] * 65}),
        ("prompt[1]", {"prompt": ["a", 7]}),
        ("prompt", {"prompt": [1, "a"]}),
        ("prompt", {"prompt": [10**9]}),
        ("n", {"prompt": ["a"] * 64, "n": 3}),
        ("n", {"prompt": "a", "n": 0}),
        ("stream", {"prompt": ["a", "b"], "stream": True}),
        ("suffix", {"prompt": "a", "suffix": "b"}),
        ("best_of", {"prompt": "a", "best_of": 4}),
        ("logprobs", {"prompt": "a", "logprobs": 21}),
        ("echo", {"prompt": "a", "echo": True, "logprobs": 1}),
        ("echo", {"prompt": [1, 2], "echo": True}),
        ("max_tokens", {"prompt": "a", "max_tokens": 0}),
        ("repetition_penalty", {"prompt": "a", "repetition_penalty": 1.2}),
    ],
)
def test_what_is_refused(site: Site, param: str, body: dict[str, Any]) -> None:
    answer = site.http.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert site.count() == 0


def test_the_header_names_fields_without_effect(site: Site) -> None:
    site.script.say("b")
    answer = site.http.post(
        "/v1/completions", {"prompt": "a", "metadata": {"x": "y"}, "tools": [], "mood": 1}
    )
    assert answer.status_code == 200
    assert answer.headers["X-OpenClaw-Ignored"] == "metadata; mood; tools"
