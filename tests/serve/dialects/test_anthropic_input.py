"""Anthropic's blocks and tools as the gateway's own messages: pure, and for whatever bytes come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collect.world import KEY, TRANSIENT

from openclaw_rl.common import message_hash
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import MAX_ID_CHARS, ChatRequest
from openclaw_rl.serve.dialects.anthropic_input import read_user_id
from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.openai_chat import ChatDialect

REMINDER = "<system-reminder>\nToday is Friday.\n</system-reminder>\n\n"
USER: Any = {"role": "user", "content": "hi"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def decode(messages: list[Any], headers: dict[str, str] | None = None, **more: Any) -> ChatRequest:
    body = {"model": "openclaw", "max_tokens": 9, "messages": messages, **more}
    return MessagesDialect().decode(json.dumps(body).encode(), headers or {})


def test_a_conversation_is_the_same_as_in_chat_completions() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 2.0, "é": None}}
    ours = decode(
        [
            {"role": "user", "content": [text("Look.", cache_control={"type": "ephemeral"})]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    text("I "),
                    call,
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "redacted_thinking", "data": "x"}, text("do.")],
            },
            {
                "role": "user",
                "content": [
                    text("And?"),
                    {"type": "tool_result", "tool_use_id": "c1", "content": "Paris"},
                ],
            },
        ],
        system=[text("Be"), text("brief.")],
    )
    function = {"name": "look", "arguments": '{ "at":2, "é":null }'}
    theirs = {
        "messages": [
            {"role": "system", "content": "Be\nbrief."},
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": "I do.",
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "Paris"},
            {"role": "user", "content": "And?"},
        ]
    }
    chat = ChatDialect().decode(json.dumps(theirs).encode(), {})
    assert [m["role"] for m in ours.messages] == [m["role"] for m in chat.messages]
    assert message_hash.mark_messages(ours.messages, KEY, TRANSIENT) == message_hash.mark_messages(
        chat.messages, KEY, TRANSIENT
    )
    assert ours.messages[2]["reasoning_content"] == "Hm."
    assert (
        ours.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"at": 2.0, "\\u00e9": null}'
    )


def test_a_reminder_beside_words_is_a_message_of_its_own() -> None:
    ask = decode(
        [{"role": "user", "content": [text(REMINDER), text("Look."), text("Now."), text(REMINDER)]}]
    )
    assert [m["content"] for m in ask.messages] == [REMINDER, "Look.\nNow.", REMINDER]
    assert [TRANSIENT(m) for m in ask.messages] == [True, False, True]
    assert len(set(ask.raw)) == 3


def test_so_is_what_the_client_tells_of_a_command() -> None:
    told = [
        "<local-command-caveat>Ran by the user.</local-command-caveat>\n",
        "<command-name>/cost</command-name>\n  <command-args></command-args>",
        "<local-command-stdout>0 $\n</local-command-stdout>",
    ]
    ask = decode([{"role": "user", "content": [*map(text, told), text("Too long.")]}])
    assert [m["content"] for m in ask.messages] == ["\n".join(told), "Too long."]
    assert [TRANSIENT(m) for m in ask.messages] == [True, False]


def test_words_typed_while_the_agent_worked_are_the_users() -> None:
    typed = "The user sent a new message while you were working:\nNo, shorter."
    as_reminder = text(f"<system-reminder>\n{typed}\n</system-reminder>")
    ask = decode(
        [USER, {"role": "system", "content": "Agents: none."}, {"role": "system", "content": typed}]
    )
    assert [m["role"] for m in ask.messages] == ["user", "system", "user"]
    (message,) = decode([{"role": "user", "content": [as_reminder]}]).messages
    assert not TRANSIENT(message)


def test_images_stand_between_the_texts_of_their_message() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    picture, image = (
        {"type": "image", "source": source},
        {"type": "image", "url": "data:image/png;base64,AAAA"},
    )
    result = {"type": "tool_result", "tool_use_id": "x", "content": [text("The page:"), picture]}
    shown = [text("a"), text("b"), picture, text("c")]
    tool, user = decode([{"role": "user", "content": [*shown, result]}]).messages
    assert tool["content"] == [text("The page:"), image]
    assert user["content"] == [text("a\nb"), image, text("c")]
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    (message,) = decode([{"role": "user", "content": [linked]}]).messages
    assert message["content"] == [{"type": "image", "url": "https://example.com/a.png"}]


def test_clients_book_keeping_is_not_part_of_the_prompt() -> None:
    header = text("x-anthropic-billing-header: cc_version=1; cch=abc;")
    assert decode([USER], system=[header, text("Be brief.")]).messages[0] == {
        "role": "system",
        "content": "Be brief.",
    }
    assert decode([USER], system=[header]).messages == [USER]


@pytest.mark.parametrize(
    ("user_id", "user", "session"),
    [
        ("ann", "ann", ""),
        ('{"device_id":"d","account_uuid":"","session_id":"s"}', "d", "s"),
        ('{"device_id":"d","account_uuid":"a","session_id":"s"}', "a", "s"),
        ("user_0af_account_6b-1_session_9c-2", "6b-1", "9c-2"),
        ("user_0af_account__session_9c-2", "0af", "9c-2"),
        ('{"device_id":5}', '{"device_id":5}', ""),
        ("{", "{", ""),
    ],
)
def test_who_asks(user_id: str, user: str, session: str) -> None:
    assert read_user_id(user_id) == (user, session)
    ask = decode([USER], metadata={"user_id": user_id})
    assert (ask.user, ask.session) == (user, session or None)


def test_a_long_name_is_read_in_linear_time() -> None:
    for name in ("user_" + "_account_" * 200_000, "user_" + "a" * 4 * MAX_ID_CHARS):
        assert read_user_id(name) == (name, "")


def test_neighbouring_messages_of_the_assistants_are_one() -> None:
    """However many there are: 100 000 take no longer than their number."""
    turn = [
        {
            "role": "assistant",
            "content": [text("word " * 10), {"type": "thinking", "thinking": "t"}],
        }
    ] * 100_000
    ask = decode([USER, *turn, USER, turn[0], USER])
    assert [m["role"] for m in ask.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert len(ask.messages[1]["content"]) == 5_000_000
    assert ask.messages[1]["reasoning_content"] == "t" * 100_000
    assert ask.raw[1].count(b"+") == 99_999


def test_a_session_in_a_header() -> None:
    assert decode([USER], {"X-Claude-Code-Session-Id": "s"}).session == "s"


def test_tools() -> None:
    ask = decode(
        [USER],
        tools=[
            {
                "name": "look",
                "description": "d",
                "input_schema": {"type": "object"},
                "cache_control": None,
            },
            {"type": "custom", "name": "own", "input_schema": {}},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "memory_20250818", "name": "memory"},
            {"type": "code_execution_20250825", "name": "code_execution"},
            {"type": "computer_toolset_20260801"},
            {"type": "mcp\r\nX: é", "mcp_server_name": "x"},
        ],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    names = ("look", "own", "str_replace_based_edit_tool", "memory")
    assert tuple(t["function"]["name"] for t in ask.tools) == names
    assert ask.tools[0]["function"] == {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object"},
    }
    assert "command" in ask.tools[2]["function"]["parameters"]["properties"]
    assert [words.split(" (")[0] for words in ask.ignored_fields] == [
        "the tool code_execution_20250825",
        "the tool computer_toolset_20260801",
        "the tool mcp??X: ?",
    ]
    assert ask.constraint is not None
    assert (ask.constraint.tool_names, ask.parallel_calls) == (names, False)


def test_what_a_reply_must_be() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    wanted = {"type": "json_schema", "schema": schema}
    for more in ({"output_config": {"effort": "low", "format": wanted}}, {"output_format": wanted}):
        forced = decode([USER], **more).constraint
        assert forced is not None
        assert (forced.schema, forced.tool_names) == (schema, ())
    tool = {"name": "look", "input_schema": {}}
    forced = decode([USER], tools=[tool], tool_choice={"type": "tool", "name": "look"}).constraint
    assert forced is not None
    assert (forced.schema, forced.tool_names, forced.param) == (None, ("look",), "tool_choice")
    assert (
        decode(
            [USER], output_config={"effort": "low"}, tools=[tool], tool_choice={"type": "auto"}
        ).constraint
        is None
    )


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("enabled", {"enable_thinking": True}),
        ("disabled", {"enable_thinking": False}),
        ("adaptive", {}),
    ],
)
def test_thinking_is_the_templates_business(kind: str, variables: dict[str, bool]) -> None:
    assert decode([USER], thinking={"type": kind}).template_variables == variables
    assert decode([USER]).template_variables == {}


def test_the_same_bytes_are_read_once() -> None:
    dialect = MessagesDialect()
    bodies = [json.dumps({"max_tokens": 9, "messages": m}).encode() for m in ([USER], [USER, USER])]
    first, second = (dialect.decode(body, {}) for body in bodies)
    assert first.messages[0] is second.messages[0]
    assert first.raw[0] == second.raw[0]


# Whatever comes: an Ask, or a refusal in words.

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [
    "text",
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "image",
    "document",
    "search_result",
    "x",
]
KEYS = [
    "text",
    "thinking",
    "id",
    "name",
    "input",
    "tool_use_id",
    "content",
    "is_error",
    "tool_name",
    "source",
]
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={key: st.text(max_size=5) | JSON for key in KEYS},
)
CONTENT = st.text() | st.lists(BLOCK, max_size=4) | JSON
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", ""]), "content": CONTENT}
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE | JSON, max_size=4), "max_tokens": st.integers(-1, 5) | JSON},
    optional={
        "system": CONTENT,
        "tools": st.lists(
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(("name", "type", "input_schema"), JSON)
            )
        )
        | JSON,
        "tool_choice": st.fixed_dictionaries(
            {"type": st.sampled_from(["auto", "any", "tool", "none", "x"])}
        )
        | JSON,
        "stop_sequences": JSON,
        "temperature": JSON,
        "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled", "x"])})
        | JSON,
        "metadata": st.fixed_dictionaries({"user_id": st.text()}) | JSON,
        "output_config": JSON,
        "stream": JSON,
    },
)


def error_shape(dialect: MessagesDialect, error: RequestError) -> tuple[int, str, str]:
    shape = json.loads(
        dialect.error_body(error.status, str(error), param=error.param, code=error.code)
    )
    return error.status, shape["type"], shape["error"]["type"]


@settings(max_examples=120, deadline=None)
@given(BODY | JSON)
def test_whatever_is_sent(body: Any) -> None:
    dialect = MessagesDialect()
    try:
        ask = dialect.decode(json.dumps(body).encode(), {})
    except RequestError as error:
        refused = error_shape(dialect, error)
        assert refused == (400, "error", "invalid_request_error")
        return
    assert len(ask.raw) == len(ask.messages) > 0
    assert {m["role"] for m in ask.messages} <= {"system", "user", "assistant", "tool"}
    message_hash.mark_messages(ask.messages, KEY, TRANSIENT)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_bytes_are_sent(body: bytes) -> None:
    with pytest.raises(RequestError):
        MessagesDialect().decode(body, {})
