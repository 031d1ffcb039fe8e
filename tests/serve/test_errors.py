"""A bad request is a 4xx in OpenAI's shape that names the field, whatever it is."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import KEY, TOOLS, USER, Site, Start

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.dialects.validation import NON_TEXT_PARTS, image_placeholder

BAD: list[tuple[str | None, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[0].role", {"messages": [{"content": "hi"}]}),
    ("messages[1].role", {"messages": [USER, {"role": "robot", "content": "hi"}]}),
    ("messages[0].role", {"messages": [{"role": ["user"], "content": "hi"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    (
        "messages[0].content[1]",
        {"messages": [{"role": "user", "content": ["a", {"type": "file", "file": {}}]}]},
    ),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": [7]}]}),
    (
        "messages[0].content[0].text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "x"}]}),
    (
        "messages[0].tool_calls[0].function",
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
    ),
    (
        "messages[0].tool_calls[0].function.arguments",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}
            ]
        },
    ),
    ("messages[0].name", {"messages": [USER | {"name": 5}]}),
    ("tools", {"tools": {}}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "any"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": 5}),
    (
        "tool_choice",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
    ),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function"}}),
    (
        "tool_choice.allowed_tools",
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
    ),
    ("functions", {"functions": [{"name": "f"}]}),
    ("response_format", {"response_format": {"type": "xml"}}),
    ("response_format", {"response_format": "json"}),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema"}}),
    ("n", {"n": 17}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 1.5}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("frequency_penalty", {"frequency_penalty": -3}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("logit_bias", {"logit_bias": {"999999": 1}}),
    ("seed", {"seed": 10**30}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": -5}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": [str(i) for i in range(17)]}),
    ("stop[0]", {"stop": [1]}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("stream", {"stream": "yes"}),
    ("turn_type", {"turn_type": "both"}),
    ("user", {"user": 5}),
    ("user", {"user": "u" * 513}),
    ("session_id", {"session_id": "s" * 513}),
    ("logit_bias", {"logit_bias": {"5": "x"}}),
    ("model", {"model": "gpt-4"}),
    ("model", {"model": "openclaw@7"}),
    ("model", {"model": "openclaw@x"}),
    ("messages", {"messages": [{"role": "user", "content": "word " * 5000}]}),
]
RAW: list[bytes] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"\\ud800 half a pair"}]}',
    b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    b'{"messages":[{"role":"user","content":"a","x":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}]}",
    b'{"messages":[{"role":"user","content":"a"}],"metadata":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":'
    + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}}]}]}",
]  # fmt: skip


CHAT = "/v1/chat/completions"


def post(site: Site, body: Any, path: str = CHAT) -> tuple[int, dict[str, Any]]:
    answer = site.http.post(path, body)
    return answer.status_code, answer.json().get("error")


def test_what_is_wrong_is_named(site: Site) -> None:
    for param, change in BAD:
        status, error = post(site, {"model": "openclaw", "messages": [USER]} | change)
        assert status == (404 if param == "model" else 400), (change, error)
        assert error["param"] == param, (change, error)
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) < 400
    assert site.count() == 0
    assert post(site, {"messages": [USER]})[0] == 200


def test_what_is_missing_is_named(site: Site) -> None:
    for body in ({}, {"model": "openclaw"}):
        status, error = post(site, body)
        assert (status, error["param"]) == (400, "messages")
        assert error["message"].startswith("messages: ")
    raw = b'{"messages":[{"role":"user","content":"hi","x":[{"y":1e999}]}]}'
    assert post(site, raw)[1]["param"] == "messages[0]", (
        "what is wrong lies under a key that is not known"
    )
    assert post(site, {"score": 1}, "/v1/feedback")[1]["param"] == "id"
    assert post(site, {"model": None, "messages": [USER]})[0] == 200


def test_bytes_that_are_no_request(site: Site) -> None:
    for raw in RAW:
        status, error = post(site, raw)
        assert status in (200, 400), (raw[:80], error)
        if status == 400:
            assert error["message"]
    assert post(site, RAW[0])[0] == 400


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ["model", "messages", "tools", "tool_choice", "stream", "max_tokens", "temperature"]
FIELDS += ["top_p", "stop", "n", "seed", "logit_bias", "logprobs", "user"]


@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), message=st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "name", "reasoning_content", "x"]), JSON, max_size=3
))  # fmt: skip
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_request_is_a_5xx(site: Site, changes: dict[str, Any], message: dict[str, Any]) -> None:
    body = {"messages": [USER | message], "max_tokens": 2} | changes
    answer = site.http.post(CHAT, body)
    assert answer.status_code < 500, (body, answer.text)


def test_the_official_client_raises_its_own_errors(site: Site) -> None:
    client = site.client()
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="openclaw", messages=[USER], n=17)
    assert bad.value.param == "n"
    with pytest.raises(openai.NotFoundError, match="openclaw@<version>") as missing:
        client.chat.completions.create(model="gpt-4", messages=[USER])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="openclaw", messages=[{"role": "user", "content": "a " * 3000}]
        )
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    assert (
        "This model's maximum context length is 2048 tokens. However, your messages resulted in"
        in str(long.value)
    )
    with pytest.raises(openai.AuthenticationError):
        site.client("sk-wrong").chat.completions.create(model="openclaw", messages=[USER])
    with pytest.raises(openai.AuthenticationError):
        site.client("sk-wrong").models.list()


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}', '{"\\udfff": -Infinity}']
)
@pytest.mark.parametrize("kind", ["chatml", "thinking"])
def test_arguments_that_no_prompt_can_hold_stay_text(
    start: Start, kind: str, arguments: str
) -> None:
    """Half a surrogate pair cannot be tokenised, and NaN is no JSON: templates see the words as they were sent."""
    site = start(kind)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    for path, body in (
        (CHAT, {"messages": chat}),
        ("/v1/responses", {"input": [USER, item, USER]}),
    ):
        assert post(site, body, path) == (200, None)
    prompt = site.renderer.tokenizer.backend.decode(
        site.last().request.prompt_ids.tolist(), skip_special_tokens=False
    )
    assert arguments.replace('"', '\\"').replace("\\u", "\\\\u") in prompt or arguments in prompt


def test_text_that_no_tokenizer_takes_is_a_400(site: Site) -> None:
    with pytest.raises(RequestError, match="half a surrogate pair") as refused:
        site.renderer.template.render([{"role": "user", "content": "\ud800"}], [], generation=True)
    assert refused.value.status == 400


@pytest.mark.parametrize("kind", ["image_url", "input_image", "file", "input_audio"])
def test_what_a_tool_shows_is_told_of_in_words(site: Site, kind: str) -> None:
    """A person's own picture is refused; a tool's would end an agent's conversation for good."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    shown: list[Any] = ["a", {"type": "text", "text": "b"}, {"type": kind, kind: {"url": "x"}}]
    result = {"role": "tool", "tool_call_id": "c", "content": shown}
    assert (
        post(site, {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, result]})[0]
        == 200
    )
    told = site.last().request.messages[2]["content"]
    assert told == [*shown[:2], {"type": "text", "text": image_placeholder(kind)}]
    status, error = post(site, {"messages": [{"role": "user", "content": shown}]})
    assert status == 400
    if NON_TEXT_PARTS[kind] == "an image":
        assert error["message"].startswith(
            "messages: got an image, but the model 'openclaw' reads text only"
        )
    else:
        assert (
            error["message"]
            == f"messages[0].content[2]: got {NON_TEXT_PARTS[kind]}; expected text."
        )
    status, error = post(site, {"messages": [result | {"content": [{"type": "x"}]}]})
    assert (status, error["param"]) == (400, "messages[0].content[0]")


@pytest.mark.parametrize(
    ("path", "tool", "field"),
    [
        (CHAT, TOOLS[0], "tools[1].function.name"),
        ("/v1/responses", {"type": "function", "name": "get_weather"}, "tools[1].name"),
        ("/v1/messages", {"name": "get_weather", "input_schema": {}}, "tools[1].name"),
    ],
)
def test_two_tools_of_one_name(site: Site, path: str, tool: dict[str, Any], field: str) -> None:
    body = {"messages": [USER], "input": "hi", "max_tokens": 9}
    status, error = post(site, body | {"tools": [tool, tool]}, path)
    assert status == 400
    assert error["message"] == f"{field}: two tools have the name 'get_weather'."
    assert post(site, body | {"tools": [tool]}, path)[0] == 200


def test_what_a_template_refuses_is_a_400(start: Start) -> None:
    """Of a conversation the form is changed until the template takes it; a tool is refused."""
    site = start("gptoss")
    function: Any = {"name": "f", "description": "d", "parameters": {"properties": 5}}
    with pytest.raises(openai.BadRequestError, match="chat template refuses this conversation"):
        site.client().chat.completions.create(
            model="openclaw", messages=[USER], tools=[{"type": "function", "function": function}]
        )


def test_routes_that_are_not_there(site: Site) -> None:
    status, error = post(site, {}, "/v1/complete")
    assert status == 404
    routes = (
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "count_tokens",
        "input_tokens",
        "/v1/feedback",
    )
    assert all(
        route in error["message"] for route in (*routes, "/v1/models", "/readyz", "/metrics")
    )
    answer = site.http.get(CHAT)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert "POST" in answer.json()["error"]["message"]
    assert site.http.get("/v1/models/none").status_code == 404


def test_bytes_that_are_no_text_in_path_and_headers(site: Site) -> None:
    assert site.http.get("/v1/models/%ff%00").status_code == 404
    assert site.http.get("/%ff").status_code == 404
    assert post(site, {"messages": [USER], "model": "\udce4"})[0] == 404
    odd = {"Authorization": f"Bearer {KEY}", "X-Session-Id": "s\xff", "X-Agent-Id": "\xe9"}
    assert site.http.post(CHAT, {"messages": [USER]}, odd).status_code == 200
    assert (site.last().request.session, site.last().request.agent) == ("s\xff", "\xe9")
    assert (
        site.http.post(CHAT, {"messages": [USER]}, odd | {"X-Turn-Type": "\xff"}).status_code == 400
    )
    assert site.http.post(CHAT, {"messages": [USER]}, {"x-api-key": "\xff"}).status_code == 401


def test_ids_have_a_limit(site: Site) -> None:
    for name in ("X-Session-Id", "X-Agent-Id"):
        for length, status in ((512, 200), (513, 400)):
            headers = {"Authorization": f"Bearer {KEY}", name: "a" * length}
            answer = site.http.post(CHAT, {"messages": [USER]}, headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["param"] == name
    assert site.count() == 2


def test_keys(site: Site) -> None:
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer " + KEY + "x"}, 401),
        ({"Authorization": "Basic " + KEY}, 401),
        ({"Authorization": "bearer " + KEY}, 200),
        ({"x-api-key": KEY}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": KEY}, 200),
        ({"Authorization": "Bearer " + KEY, "x-api-key": "wrong"}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "wrong"}, 401),
    ):
        assert site.http.post(CHAT, {"messages": [USER]}, headers).status_code == status, headers
    assert (
        site.http.get("/healthz", {}).status_code == site.http.get("/readyz", {}).status_code == 200
    )
    assert site.http.post("/v1/feedback", {}, {}).status_code == 401
    error = site.http.post(CHAT, {"messages": [USER]}, {}).json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_a_body_that_is_too_large(start: Start) -> None:
    site = start(settings={"serve.max_body_bytes": 2000})
    answer = site.http.post(CHAT, b"x" * 3000)
    assert answer.status_code == 413
    assert "2000" in answer.json()["error"]["message"]
