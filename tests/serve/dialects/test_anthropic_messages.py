"""The official Anthropic client, unmodified, against the real app on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from tests.serve.conftest import KEY, SCOPE, Site, Start, statuses, wait_for

from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import ExchangeStatus, FinishReason

MODEL = "openclaw"
USER: Any = {"role": "user", "content": "hi"}
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\u0072is"}}\n</tool_call>'
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}
Client = Callable[..., anthropic.Anthropic]


@pytest.fixture
def client() -> Iterator[Client]:
    made: list[anthropic.Anthropic] = []

    def client(site: Site, key: str = KEY) -> anthropic.Anthropic:
        http = anthropic.DefaultHttpxClient(
            verify=False
        )  # loading the certificates would take 20 ms of each test
        made.append(
            anthropic.Anthropic(
                base_url=site.url, api_key=key, max_retries=0, timeout=240, http_client=http
            )
        )
        return made[-1]

    yield client
    for one in made:
        one.close()


def ask(client: anthropic.Anthropic, **more: Any) -> anthropic.types.Message:
    return client.messages.create(
        **({"model": MODEL, "max_tokens": 100, "messages": [USER]} | more)
    )


def streamed(client: anthropic.Anthropic, **more: Any) -> anthropic.types.Message:
    with client.messages.stream(
        **({"model": MODEL, "max_tokens": 100, "messages": [USER]} | more)
    ) as stream:
        return stream.get_final_message()


BOTH = pytest.mark.parametrize("say", [ask, streamed])


@BOTH
def test_a_reply(site: Site, client: Client, say: Any) -> None:
    ids = site.script.say("Hello there, é 😀.")
    reply = say(client(site), system="Be brief.", metadata={"user_id": "ann"})
    assert [b.to_dict() for b in reply.content] == [{"type": "text", "text": "Hello there, é 😀."}]
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL)
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert reply.id.startswith("msg_")
    kept = site.get(reply.id)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (
        len(kept.request.prompt_ids),
        len(ids),
    )
    assert kept.request.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert (kept.request.scope, kept.request.user, kept.request.dialect) == (
        SCOPE,
        "ann",
        "messages",
    )
    assert (
        kept.request.prompt_ids.tolist()
        == site.renderer.render(kept.request.messages).prompt_ids.tolist()
    )
    assert kept.reply is not None
    assert kept.reply.status is ExchangeStatus.DONE
    assert kept.reply.message == {"role": "assistant", "content": "Hello there, é 😀."}
    assert kept.reply.response_ids.tolist() == ids
    assert kept.reply.logprobs.tolist() == pytest.approx(
        [ScriptedEngine.token_logprob(i, 0) for i in ids]
    )
    assert kept.reply.finish_reason is FinishReason.STOP


def test_the_events_of_a_stream(start: Start, client: Client) -> None:
    site = start("thinking")
    site.script.say(f"Two and two.\n</think>\n\nFour.\n{CALL}\n{CALL}")
    events = list(
        client(site).messages.create(
            model=MODEL, max_tokens=200, messages=[USER], tools=[WEATHER], stream=True
        )
    )
    names = [e.type for e in events if e.type != "content_block_delta"]
    blocks = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", *blocks * 4, "message_delta", "message_stop"]
    first, last = events[0], events[-2]
    assert first.type == "message_start"
    assert last.type == "message_delta"
    assert (first.message.content, first.message.stop_reason) == ([], None)
    assert (
        first.message.usage.input_tokens
        == last.usage.input_tokens
        == len(site.last().request.prompt_ids)
    )
    assert last.usage.output_tokens == len(site.script.ids)
    deltas: dict[tuple[int, str], str] = {}
    for event in events:
        if event.type == "content_block_delta":
            delta = event.delta.to_dict()
            kind = str(delta.pop("type"))
            deltas[event.index, kind] = deltas.get((event.index, kind), "") + str(
                delta.popitem()[1]
            )
    assert deltas == {
        (0, "thinking_delta"): "Two and two.",
        (0, "signature_delta"): first.message.id,
        (1, "text_delta"): "Four.",
        (2, "input_json_delta"): '{"city": "Pa\\u0072is"}',
        (3, "input_json_delta"): '{"city": "Pa\\u0072is"}',
    }


def test_text_leaves_as_it_is_sampled_and_the_request_before_it(
    start: Start, client: Client
) -> None:
    site = start(delay=0.02)
    site.script.say("a b c d e f g h")
    with client(site).messages.stream(model=MODEL, max_tokens=50, messages=[USER]) as stream:
        assert next(iter(stream.text_stream))
        assert site.engine.running[0] == 1
        assert statuses(site) == [ExchangeStatus.RUNNING]
        assert "".join(stream.text_stream).endswith("h")


def test_the_finish_leaves_when_the_exchange_is_durable(site: Site, client: Client) -> None:
    """So does what makes an agent start a tool: the end of the tool's block."""
    ours = client(site)
    site.script.say(f"Look.\n{CALL}")
    for _ in range(10):
        stream = ours.messages.create(
            model=MODEL, max_tokens=200, messages=[USER], tools=[WEATHER], stream=True
        )
        for event in stream:
            if event.type == "message_delta" or (
                event.type == "content_block_stop" and event.index
            ):
                assert statuses(site)[-1] is ExchangeStatus.DONE


@BOTH
def test_parallel_tools_and_their_results(site: Site, client: Client, say: Any) -> None:
    """A whole round trip: what comes back is the stored reply, so that the turn links and its tokens are reused."""
    site.script.say(f"Let me look.\n{CALL}\n{CALL}")
    ours = client(site)
    reply = say(ours, tools=[WEATHER])
    assert [b.type for b in reply.content] == ["text", "tool_use", "tool_use"]
    assert reply.stop_reason == "tool_use"
    calls = [b for b in reply.content if b.type == "tool_use"]
    assert [(c.name, c.input) for c in calls] == [("get_weather", {"city": "Paris"})] * 2
    kept = site.get(reply.id)
    assert kept.reply is not None
    assert kept.reply.finish_reason is FinishReason.TOOL_CALLS
    said = site.renderer.tokenizer.backend.decode(
        kept.reply.response_ids.tolist(), skip_special_tokens=True
    )
    assert said == f"Let me look.\n{CALL}\n{CALL}"
    results = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": "sunny"},
        {
            "type": "tool_result",
            "tool_use_id": calls[1].id,
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "And tomorrow?"},
    ]
    site.script.say("Rain.")
    after = say(
        ours,
        tools=[WEATHER],
        messages=[USER, reply.to_param(), {"role": "user", "content": results}],
    )
    request = site.get(after.id).request
    assert request.messages[2:] == [
        {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"},
        {"role": "tool", "tool_call_id": calls[1].id, "content": "no", "is_error": True},
        {"role": "user", "content": "And tomorrow?"},
    ]
    before = [*kept.request.prompt_ids, *kept.reply.response_ids]
    assert request.prompt_ids[: len(before)].tolist() == before
    assert request.marks[1].chain == kept.reply.mark.chain


@BOTH
def test_thinking(start: Start, client: Client, say: Any) -> None:
    site = start("thinking")
    site.script.say("Two and two.\n</think>\n\nFour.")
    reply = say(client(site), thinking={"type": "enabled", "budget_tokens": 1024})
    thought, text = reply.content
    assert (thought.type, thought.thinking, bool(thought.signature)) == (
        "thinking",
        "Two and two.",
        True,
    )
    assert text.text == "Four."
    assert reply.usage.output_tokens_details is not None
    assert 0 < reply.usage.output_tokens_details.thinking_tokens < reply.usage.output_tokens
    kept = site.get(reply.id).reply
    assert kept is not None
    assert kept.message == {
        "role": "assistant",
        "content": "Four.",
        "reasoning_content": "Two and two.",
    }
    again = site.get(say(client(site), messages=[USER, reply.to_param(), USER]).id).request
    assert again.messages[1] == kept.message
    assert again.marks[1].chain == kept.mark.chain


@BOTH
def test_a_stop_sequence_cuts_and_is_named(site: Site, client: Client, say: Any) -> None:
    site.script.say("The quick brown fox jumps over")
    reply = say(client(site), stop_sequences=["zzz", "brown"])
    assert reply.content[0].text == "The quick "
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "brown")
    kept = site.get(reply.id).reply
    assert kept is not None
    assert not kept.mask.all() or len(kept.response_ids) < len(site.script.ids)


@BOTH
def test_length_and_sampling(site: Site, client: Client, say: Any) -> None:
    reply = say(
        client(site), max_tokens=2, extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    )
    assert reply.stop_reason == "max_tokens"
    sampling = site.engine.calls[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (
        2,
        0.5,
        0.9,
        7,
    )


def test_one_call_where_parallel_ones_are_not_wanted(site: Site, client: Client) -> None:
    site.script.say(f"{CALL}\n{CALL}")
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    reply = ask(client(site), tools=[WEATHER], tool_choice=choice)
    assert [b.type for b in reply.content] == ["tool_use"]
    assert reply.stop_reason == "tool_use"


def test_tools_that_are_not_for_now_are_not_shown(site: Site, client: Client) -> None:
    site.script.say(CALL)
    reply = ask(client(site), tools=[WEATHER], tool_choice={"type": "none"})
    assert [b.type for b in reply.content] == ["text"]
    assert site.get(reply.id).request.tools == []


def test_fields_without_effect_are_named_in_a_header(site: Site, client: Client) -> None:
    create = client(site).messages.with_raw_response.create
    plain = create(model=MODEL, max_tokens=9, messages=[USER])
    odd = create(
        model=MODEL, max_tokens=9, messages=[USER], service_tier="auto", extra_body={"store": False}
    )
    assert "X-OpenClaw-Ignored" not in plain.headers
    assert odd.headers["X-OpenClaw-Ignored"] == "service_tier; store"


def test_server_tools_are_named_in_a_header(site: Site, client: Client) -> None:
    tools: Any = [
        WEATHER,
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    raw = client(site).messages.with_raw_response.create(
        model=MODEL, max_tokens=9, messages=[USER], tools=tools
    )
    assert "web_search_20250305" in raw.headers["X-OpenClaw-Ignored"]
    shown = [t["function"]["name"] for t in site.get(raw.parse().id).request.tools]
    assert shown == ["get_weather", "bash"]


def test_betas_and_unknown_keys_are_accepted(site: Site, client: Client) -> None:
    reply = client(site).beta.messages.create(
        model=MODEL,
        max_tokens=9,
        messages=[USER],
        betas=["interleaved-thinking-2025-05-14"],
        service_tier="auto",
        extra_body={"context_management": {"edits": []}, "no_such_key": 1},
    )
    assert reply.content[0].type == "text"


def test_counting_tokens(site: Site, client: Client) -> None:
    ours = client(site)
    asked: Any = {"system": "Be brief.", "messages": [USER], "tools": [WEATHER]}
    count = ours.messages.count_tokens(model=MODEL, **asked)
    assert site.count() == 0
    assert count.input_tokens == ask(ours, **asked).usage.input_tokens
    with pytest.raises(anthropic.NotFoundError):
        ours.messages.count_tokens(model="claude-opus-4-8", **asked)


def test_feedback_on_a_message(site: Site, client: Client) -> None:
    reply = ask(client(site))
    answer = site.http.post("/v1/feedback", {"id": reply.id, "thumbs": "up"})
    assert (answer.status_code, answer.json()["target"]) == (200, reply.id)


def test_the_models(site: Site, client: Client) -> None:
    listed = list(client(site).models.list())
    assert [(m.id, m.type, m.display_name) for m in listed] == [
        (n, "model", n) for n in ("openclaw", "openclaw@0")
    ]
    assert client(site).models.retrieve("openclaw").created_at == listed[0].created_at


def test_model_names(start: Start, client: Client) -> None:
    site = start(settings={"serve.any_model": True})
    assert ask(client(site), model="claude-opus-4-8").model == "claude-opus-4-8"
    assert ask(client(site), model="openclaw@0").model == "openclaw@0"


# What goes wrong.


def test_a_key_that_is_not_known(site: Site, client: Client) -> None:
    with pytest.raises(anthropic.AuthenticationError) as error:
        ask(client(site, "sk-wrong"))
    assert error.value.type == "authentication_error"
    assert "x-api-key" in str(error.value)
    assert error.value.response.headers["X-Should-Retry"] == "false"
    bearer = anthropic.Anthropic(base_url=site.url, auth_token=KEY, max_retries=0)
    with bearer:
        assert ask(bearer).stop_reason == "end_turn"


def test_a_model_that_is_not_here(site: Site, client: Client) -> None:
    with pytest.raises(anthropic.NotFoundError, match=r"ANTHROPIC_MODEL.*serve.any_model") as error:
        ask(client(site), model="claude-opus-4-8")
    assert (error.value.type, error.value.error_code) == ("not_found_error", "model_not_found")


def test_a_version_that_is_not_here(site: Site, client: Client) -> None:
    with pytest.raises(
        anthropic.NotFoundError, match=r"version 7 does not exist; the newest is 0\.'"
    ) as error:
        ask(client(site), model="openclaw@7")
    assert (error.value.type, error.value.error_code) == ("not_found_error", "version_not_found")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [PICTURE]}]},
            r"messages: got an image, but the model 'openclaw' reads text only",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": " "}]},
            "messages: a reply continues a last message with",
        ),
        ({"messages": []}, "at least one message"),
        ({"max_tokens": 0}, "max_tokens: expected at least 1"),
        ({"extra_body": {"temperature": 1.5}}, "temperature: .* at most 1"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        (
            {"tool_choice": {"type": "tool", "name": "nope"}, "tools": [WEATHER]},
            "'nope' is not in tools",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice: requires at least one tool in tools"),
        ({"tools": [{"name": "x"}]}, r"tools\[0\].input_schema"),
        ({"stop_sequences": [""]}, "stop_sequences: expected strings that are not empty"),
        ({"system": [PICTURE]}, r"system\[0\]: got an image"),
        ({"metadata": {"user_id": "u" * 600}}, "metadata.user_id"),
    ],
)
def test_what_is_refused(site: Site, client: Client, more: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words) as error:
        ask(client(site), **more)
    assert error.value.type == "invalid_request_error"
    assert site.count() == 0


def test_max_tokens_is_required(site: Site) -> None:
    answer = site.http.post("/v1/messages?beta=true", {"model": MODEL, "messages": [USER]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"].startswith("max_tokens: this field is required")


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_clients_look_for(
    site: Site, client: Client
) -> None:
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2048 maximum"
    ) as error:
        ask(client(site), messages=[{"role": "user", "content": "word " * 5000}])
    assert error.value.error_code == "context_length_exceeded"


def test_the_count_of_a_prompt_that_is_too_long_has_a_limit(site: Site) -> None:
    def count(words: int) -> tuple[int, dict[str, Any]]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * words}]}
        answer = site.http.post("/v1/messages/count_tokens", body)
        return answer.status_code, answer.json()

    status, counted = count(5000)
    assert status == 200
    assert counted["input_tokens"] > 2048, "a client learns by how much it exceeds the context"
    status, refused = count(100_000)
    assert status == 400
    assert refused["error"]["message"].startswith("prompt is too long: ")


def test_a_body_that_is_too_large(start: Start, client: Client) -> None:
    site = start(settings={"serve.max_body_bytes": 2048})
    with pytest.raises(anthropic.ContentTooLargeError) as error:
        ask(client(site), messages=[{"role": "user", "content": "x" * 4096}])
    assert error.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages"])
def test_paths_below_answer_in_this_shape_too(site: Site, path: str) -> None:
    answer = site.http.get(path)
    assert (answer.status_code, answer.json()["type"]) == (
        405 if path == "/v1/messages" else 404,
        "error",
    )


def test_an_engine_that_is_gone(start: Start, client: Client) -> None:
    site = start(settings={"serve.engine_wait": 0.1}, gone_at=0)
    with pytest.raises(anthropic.ServiceUnavailableError) as error:
        ask(client(site))
    assert error.value.type == "overloaded_error"


def test_an_engine_that_goes_in_the_middle_breaks_the_stream_off(
    start: Start, client: Client
) -> None:
    site = start(gone_at=3)
    seen: list[str] = []
    stream = client(site).messages.create(model=MODEL, max_tokens=50, messages=[USER], stream=True)
    with pytest.raises(anthropic.APIStatusError, match="engine disconnected") as error:
        seen.extend(event.type for event in stream)
    assert error.value.type == "overloaded_error"
    assert "content_block_delta" in seen
    assert "message_delta" not in seen
    assert statuses(site) == [ExchangeStatus.FAILED]


def test_a_client_that_goes_away_cancels(start: Start, client: Client) -> None:
    site = start(delay=0.01)
    site.script.say("word " * 200)
    with client(site).messages.stream(model=MODEL, max_tokens=500, messages=[USER]) as stream:
        next(iter(stream.text_stream))
    wait_for(lambda: statuses(site), lambda s: s == [ExchangeStatus.CANCELLED])
    wait_for(lambda: site.engine.running[0], lambda n: n == 0)


def test_many_at_once(start: Start) -> None:
    site = start(delay=0.001)

    async def all_of_them() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=site.url, api_key=KEY, max_retries=0) as ours:

            async def one() -> str:
                async with ours.messages.stream(
                    model=MODEL, max_tokens=50, messages=[USER]
                ) as stream:
                    return "".join([text async for text in stream.text_stream])

            return await asyncio.gather(*(one() for _ in range(8)))

    assert asyncio.run(all_of_them()) == ["Hello there."] * 8
