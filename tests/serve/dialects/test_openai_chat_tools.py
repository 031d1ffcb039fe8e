"""Replies that must be JSON, or a call: what is asked of the engine, and what a policy that knows neither gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import TOOLS, USER, Site, Start, wait_for

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.structured_output import close_objects
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import ExchangeStatus, FinishReason

MODEL = "openclaw"
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 9},
        "tag": {"enum": ["a", "b"]},
    },
    "required": ["x", "tag"],
}
OTHER = {"type": "function", "function": {"name": "stop_all"}}


def forced(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def as_schema(schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "it", "schema": schema, "strict": strict},
    }


def grammar_of(site: Site, **asked: Any) -> str | None:
    site.client().chat.completions.create(model=MODEL, messages=[USER], **asked)
    grammar = site.last().request.sampling.grammar
    assert site.engine.calls[-1].sampling.grammar == grammar
    return grammar


def test_what_the_engine_is_asked_for(site: Site) -> None:
    assert grammar_of(site) is None
    assert (
        grammar_of(site, tools=TOOLS, tool_choice="auto", response_format={"type": "text"}) is None
    )
    anything = grammar_of(site, response_format={"type": "json_object"})
    assert anything is not None
    assert '"type": "object"' in anything
    point = grammar_of(site, response_format=as_schema(POINT, strict=False))
    assert point is not None
    assert '"maximum": 9' in point
    one = grammar_of(site, tools=[*TOOLS, OTHER], tool_choice=forced("stop_all"))
    assert one is not None
    assert "stop_all" in one
    assert "get_weather" not in one
    call = site.renderer.tokenizer.special_ids["<tool_call>"]
    assert f"<[{call}]>" in one, "a token of the tokenizer is matched as a token"
    some = grammar_of(site, tools=[*TOOLS, OTHER], tool_choice="required")
    assert some is not None
    assert "stop_all" in some
    assert "get_weather" in some
    either = grammar_of(site, tools=TOOLS, response_format=as_schema(POINT))
    assert either is not None
    assert "get_weather" in either
    assert '"maximum": 9' in either


def test_what_is_forced_is_not_trained_on(site: Site) -> None:
    site.script.say('{"a": 1}')
    site.client().chat.completions.create(
        model=MODEL, messages=[USER], response_format={"type": "json_object"}
    )
    kept = site.last()
    assert "a free reply is needed" in str(kept.request.sampling.untrainable_reason())
    assert kept.reply is not None
    assert kept.reply.status is ExchangeStatus.DONE


def test_reasoning_comes_first_where_the_prompt_opened_it(start: Start) -> None:
    grammar = grammar_of(start("thinking"), response_format={"type": "json_object"})
    assert grammar is not None
    assert grammar.startswith("start: thinking reply\n")
    assert "THOUGHT" in grammar


def test_of_allowed_tools_the_model_sees_no_others(site: Site) -> None:
    tools = [*TOOLS, OTHER]
    for mode, must in (("auto", False), ("required", True)):
        choice = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": mode, "tools": [forced("stop_all")]},
        }
        assert (grammar_of(site, tools=tools, tool_choice=choice) is not None) is must
        kept = site.last().request
        assert kept.tools == [OTHER]
        assert kept.prompt_ids.tolist() == site.renderer.render([USER], [OTHER]).prompt_ids.tolist()
        grammar_of(site, tools=tools)
        assert (
            site.last().request.prompt_ids.tolist()
            == site.renderer.render([USER], tools).prompt_ids.tolist()
        )


def test_an_engine_without_grammars_says_so(start: Start) -> None:
    site = start(grammar=False)
    for stream in (False, True):
        for asked, param in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ):
            with pytest.raises(
                openai.BadRequestError, match=r"does not support grammars.*in the prompt"
            ) as refused:
                site.client().chat.completions.create(
                    model=MODEL, messages=[USER], stream=stream, n=2, **asked
                )
            assert refused.value.param == param


def test_a_template_whose_calls_are_not_known_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start()
    monkeypatch.setattr(site.renderer, "call_form", lambda name: None)
    for asked in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(
            openai.BadRequestError, match="the tool call format of this model's chat template"
        ):
            site.client().chat.completions.create(
                model=MODEL, messages=[USER], tools=TOOLS, **asked
            )
    assert site.count() == 0


def test_a_grammar_has_a_size(site: Site) -> None:
    huge = {"enum": [f"value {n}" * 20 for n in range(2000)]}
    with pytest.raises(openai.BadRequestError, match="at most"):
        site.client().chat.completions.create(
            model=MODEL, messages=[USER], response_format=as_schema(huge)
        )


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(
            st.sampled_from(["properties", "type", "allOf", "anyOf", "items", "$ref", "enum", "x"]),
            inner,
        ),
    ),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(_json)
def test_whatever_is_sent_is_understood_or_refused(value: Any) -> None:
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": value, "response_format": value}
    with suppress(RequestError):  # nothing else
        ask = ChatDialect().decode(json.dumps(body).encode(), {})
        assert ask.tools or value == "none"
    close_objects(value)


def test_only_objects_that_list_their_properties_are_closed() -> None:
    inner = {"type": "object", "properties": {"properties": {"type": "object"}}}
    assert close_objects({"items": inner})["items"] == inner | {"additionalProperties": False}
    for kept in (
        {"type": "object"},
        {"properties": {}, "additionalProperties": True},
        {"enum": [{"properties": {}}]},
    ):
        assert close_objects(kept) == kept
    composed = {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}
    assert close_objects(composed) == composed


# The real engine, with the policy that is shipped: it has never seen a tool of ours.


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubprocessSystem]:
    config = scratch_config(tmp_path_factory.mktemp("forced"), {"run.log_level": "warning"})
    with SubprocessSystem(
        config, command="serve"
    ) as made:  # collect, judge and train are not needed
        yield made


@pytest.fixture(scope="module")
def client(system: SubprocessSystem) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=system.base_url + "/v1", api_key=system.api_key, max_retries=0, timeout=240
    ) as made:
        yield made


SEARCH = {
    "type": "function",
    "function": {
        "name": "search_flights",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"enum": ["Paris", "Rome"]},
                "day": {"type": "integer", "minimum": 1, "maximum": 31},
                "seats": {
                    "type": "array",
                    "items": {"enum": ["window", "aisle"]},
                    "minItems": 1,
                    "maxItems": 2,
                },
            },
            "required": ["to", "day", "seats"],
        },
    },
}


def check_flight(arguments: str) -> None:
    value = json.loads(arguments)
    assert value.keys() == {"to", "day", "seats"}
    assert value["to"] in ("Paris", "Rome")
    assert 1 <= value["day"] <= 31
    assert 1 <= len(value["seats"]) <= 2
    assert set(value["seats"]) <= {"window", "aisle"}


@pytest.mark.parametrize("choice", ["required", forced("search_flights")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forced_call_is_a_call(
    client: openai.OpenAI, system: SubprocessSystem, choice: Any, temperature: float
) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[USER],
        tools=[SEARCH],
        tool_choice=choice,
        temperature=temperature,
        n=4,
    )
    for found in reply.choices:
        assert found.finish_reason == "tool_calls"
        (call,) = found.message.tool_calls or ()
        assert call.type == "function"
        assert call.function.name == "search_flights"
        check_flight(call.function.arguments)
    with closing(Store.open(system.config.store_path)) as store, store.read() as conn:
        kept = exchanges.get(conn, reply.id)
    assert kept is not None
    assert kept.reply is not None
    assert kept.reply.finish_reason is FinishReason.TOOL_CALLS


def test_a_tool_without_parameters_takes_none(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=[USER], tools=[OTHER], tool_choice="required"
    )
    (call,) = reply.choices[0].message.tool_calls or ()
    assert (call.type, json.loads(call.function.arguments)) == ("function", {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept_to(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [USER],
        "response_format": as_schema(POINT),
        "logprobs": True,
    }
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
    else:
        text = client.chat.completions.create(**asked).choices[0].message.content or ""
    value = json.loads(text)
    assert value.keys() == {"x", "tag"}
    assert 0 <= value["x"] <= 9
    assert value["tag"] in ("a", "b")


def test_a_reply_that_is_cut_says_so(client: openai.OpenAI) -> None:
    long = as_schema({"type": "array", "items": {"type": "integer"}, "minItems": 50})
    reply = client.chat.completions.create(
        model=MODEL, messages=[USER], response_format=long, max_tokens=20
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "schema", [{"type": "object", "not": {"required": ["a"]}}, {"type": "nonsense"}]
)
def test_a_schema_that_cannot_be_forced_names_its_field(
    client: openai.OpenAI, schema: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match="the format cannot be enforced") as refused:
        client.chat.completions.create(
            model=MODEL, messages=[USER], response_format=as_schema(schema), stream=stream, n=2
        )
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_grammar")


LARGE = {"type": "string", "pattern": "^(([a-z]{1,1000}){1,1000}){1,1000}$"}
"""Fails where the reply comes to it. What replies have found out of a grammar they share: later ones fail at once."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_grammar_that_fails_at_its_first_token_is_refused(
    client: openai.OpenAI, stream: bool, n: int
) -> None:
    for _ in range(50):  # a reply may end before it comes so far
        try:
            client.chat.completions.create(
                model=MODEL, messages=[USER], response_format=as_schema(LARGE), max_tokens=60
            )
        except openai.BadRequestError:
            break
    with pytest.raises(
        openai.BadRequestError, match=r"response_format: no token .* too many expressions"
    ) as refused:
        client.chat.completions.create(
            model=MODEL, messages=[USER], response_format=as_schema(LARGE), stream=stream, n=n
        )
    assert refused.value.code == "invalid_grammar"


def test_a_grammar_that_fails_in_the_middle_breaks_the_reply_off(
    client: openai.OpenAI, system: SubprocessSystem
) -> None:
    nowhere = {"$ref": "#/$defs/nowhere"}
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": nowhere},
        "required": ["a", "b"],
    }
    schema["$defs"] = {"nowhere": nowhere}
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [USER],
        "response_format": as_schema(schema),
    }
    with pytest.raises(openai.BadRequestError, match=r"a \$ref refers only to itself"):
        client.chat.completions.create(**asked)
    stream, text, id = client.chat.completions.create(**asked, stream=True), "", ""
    with pytest.raises(openai.APIError, match=r"a \$ref refers only to itself") as broken:  # noqa: PT012 - until then
        for chunk in stream:
            id, text = chunk.id, text + (chunk.choices[0].delta.content or "")
            assert chunk.choices[0].finish_reason is None
    assert text.startswith("{")
    assert (broken.value.code, broken.value.type) == ("invalid_grammar", "invalid_request_error")
    with closing(Store.open(system.config.store_path)) as store, store.read() as conn:
        kept = exchanges.get(conn, id)
    assert kept is not None
    assert kept.reply is not None
    assert kept.reply.status is ExchangeStatus.FAILED
    assert kept.reply.message["content"] == text


@pytest.mark.parametrize("max_tokens", [60, 200])
def test_a_small_format_is_a_short_reply(client: openai.OpenAI, max_tokens: int) -> None:
    """The shipped policy knows no JSON, and still ends: what it may fill a reply with is bounded."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[USER],
        response_format=as_schema(schema),
        max_tokens=max_tokens,
        n=8,
        seed=1,
    )
    assert [c.finish_reason for c in reply.choices] == ["stop"] * 8
    assert all(json.loads(c.message.content or "").keys() == {"ok"} for c in reply.choices)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_could_never_be_read_is_refused(client: openai.OpenAI, stream: bool) -> None:
    for function, words in (
        ({"name": "f", "parameters": {"type": "string"}}, "parameters of the tool 'f'"),
        ({"name": "<|im_end|>"}, "Rename the tool"),
    ):
        tools: Any = [{"type": "function", "function": function}]
        with pytest.raises(openai.BadRequestError, match=words):
            client.chat.completions.create(
                model=MODEL, messages=[USER], tools=tools, tool_choice="required", stream=stream
            )


def test_a_client_that_leaves_while_its_grammar_is_compiled(
    client: openai.OpenAI, system: SubprocessSystem
) -> None:
    hasty = client.with_options(timeout=0.02)
    for number in range(5):
        schema = {
            "type": "object",
            "properties": {f"p{number}_{n}": {"type": "string"} for n in range(900)},
        }
        with suppress(openai.APITimeoutError):
            hasty.chat.completions.create(
                model=MODEL, messages=[USER], response_format=as_schema(schema)
            )
    reply = client.chat.completions.create(model=MODEL, messages=[USER], max_tokens=4)
    assert reply.usage is not None

    def statuses() -> set[str]:
        with closing(Store.open(system.config.store_path)) as store, store.read() as conn:
            return {row[0] for row in conn.exec_driver_sql("SELECT status FROM exchanges").all()}

    wait_for(statuses, lambda found: "running" not in found, 20.0)


def test_a_second_turn_finds_the_states_of_the_first(client: openai.OpenAI) -> None:
    say = {
        "role": "user",
        "content": "What is the capital of France? Please say it in one whole sentence.",
    }
    first = client.chat.completions.create(model=MODEL, messages=[say], max_tokens=20)
    assert first.usage is not None
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    second = client.chat.completions.create(model=MODEL, messages=[say, answer, USER], max_tokens=4)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) < second.usage.prompt_tokens
