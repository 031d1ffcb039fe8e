"""Options of Chat Completions beyond OpenAI's own: each has an effect, is named as ignored, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from tests.serve.conftest import TOOLS, USER, Answer, Site, Start

from openclaw_rl.collect.worker import Collector
from openclaw_rl.errors import RequestError
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.completion_handler import apply_effort
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.structured_output import build_grammar
from openclaw_rl.store import turns

Renderers = Callable[[str], Renderer]


def decode(**fields: Any) -> ChatRequest:
    return ChatDialect().decode(json.dumps({"messages": [USER], **fields}).encode(), {})


def post(site: Site, **fields: Any) -> Answer:
    return site.http.post("/v1/chat/completions", {"messages": [USER], **fields})


def test_the_header_names_every_key_without_effect(site: Site) -> None:
    site.script.say("Hello.")
    plain = post(
        site, temperature=1, user="ann", stream_options=None, verbosity=None, repetition_penalty=1.0
    )
    assert "X-OpenClaw-Ignored" not in plain.headers
    odd = post(
        site, verbosity="low", metadata={"a": "b"}, modalities=["text"], **{"né\nw": 1, "x" * 99: 1}
    )
    assert odd.headers["X-OpenClaw-Ignored"] == "metadata; n?" + "?w; verbosity; " + "x" * 60
    assert odd.status_code == 200
    many = post(site, stream=True, **{f"key_{n:04}": 1 for n in range(500)})
    assert len(many.headers["X-OpenClaw-Ignored"]) == 1000
    forced = decode(response_format={"type": "json_object"}, tool_choice="required", tools=TOOLS)
    assert forced.ignored_fields == ("response_format (tool_choice requires a call)",)


REFUSED = {"repetition_penalty": 1.1, "modalities": ["text", "audio"], "audio": {"voice": "x"}, "best_of": 2,
           "use_beam_search": True, "length_penalty": 0.5, "ignore_eos": True, "bad_words": ["no"],
           "prompt_logprobs": 0, "logits_processors": ["f"], "prompt_embeds": "AA==", "web_search_options": {},
           "prediction": {"type": "content", "content": "x"}}  # fmt: skip


@pytest.mark.parametrize("field", REFUSED)
def test_what_would_change_the_reply_is_refused(field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: ") as refused:
        decode(**{field: REFUSED[field]})
    assert refused.value.param == field
    assert decode(**{field: None}).ignored_fields == ()


FORMATS = [
    ("choice", ["yes", 'n"o\n'], ["yes", 'n"o\n'], ["no", "yess"]),
    ("regex", r"[0-9]+/\d{2}", ["12/34"], ["12-34", "12/3"]),
    (
        "json",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ['{"a": 1}'],
        ['{"a"}'],
    ),
    ("json", '{"type": "integer"}', ["42"], ["x"]),
    ("grammar", 'start: x "}"\nx: /[0-9]+/', ["12}"], ["12", "}"]),
    ("grammar", 'root ::= "a" b\nb ::= [0-9]+', ["a12"], ["b12", "a"]),
]


@pytest.mark.parametrize("kind", ["chatml", "thinking"])
@pytest.mark.parametrize(("form", "value", "right", "wrong"), FORMATS)
def test_a_format_is_enforced(
    renderers: Renderers, kind: str, form: str, value: Any, right: list[str], wrong: list[str]
) -> None:
    renderer = renderers(kind)
    tokenizer = llguidance.LLTokenizer(str(renderer.files.folder / "tokenizer.json"))
    for fields in ({f"guided_{form}": value}, {"structured_outputs": {form: value}}):
        constraint = decode(**fields).constraint
        assert constraint is not None
        thinks = kind == "thinking"
        matcher = llguidance.LLMatcher(
            tokenizer, build_grammar(constraint, (), renderer, thinking=thinks), log_level=0
        )
        assert not matcher.is_error(), matcher.get_error()
        for text in [*right, *wrong]:
            matcher.reset()
            ids = renderer.tokenizer.encode("So.</think>\n\n" * thinks + text).tolist()
            whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
            assert whole == (text in right), text


def test_a_format_reaches_the_engine_and_is_never_trained_on(site: Site) -> None:
    site.script.say("yes")
    post(site, structured_outputs={"choice": ["yes", "no"]})
    sampling = site.last().request.sampling
    assert 'answer: "yes" | "no"' in (sampling.grammar or "")
    assert sampling.untrainable_reason()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"guided_choice": ["a"], "guided_regex": "b"},
            "guided_choice: a reply has one format, got guided_choice, gu",
        ),
        ({"guided_choice": []}, "guided_choice: expected a list of strings that are not empty"),
        ({"guided_json": [1]}, "guided_json: expected a JSON schema that is an object, got"),
        (
            {"guided_json": "{"},
            "guided_json: expected a JSON schema, got text that is not valid JSON",
        ),
        ({"guided_regex": 5}, "guided_regex: expected text, got"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar: expected a Lark or GBNF grammar: "),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs: expected one of json, regex, choice, ",
        ),
        ({"structured_outputs": "x"}, "structured_outputs: expected an object, got"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "conflicts with response_format. Send one",
        ),
        (
            {"guided_regex": "a", "tool_choice": "required", "tools": TOOLS},
            "guided_regex: conflicts with tool_choice",
        ),
    ],
)
def test_a_format_that_cannot_be_enforced_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode(**fields)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "effort", "variables"),
    [
        ("chatml", "low", {}),
        ("chatml", "none", {}),
        ("qwen3", "none", {"enable_thinking": False}),
        ("qwen3", "low", {}),
        ("gptoss", "low", {"reasoning_effort": "low"}),
    ],
)
def test_the_reasoning_effort_goes_to_the_template(
    renderers: Renderers, kind: str, effort: str, variables: dict[str, Any]
) -> None:
    ask = apply_effort(decode(reasoning_effort=effort), renderers(kind).template.names)
    assert ask.template_variables == variables
    assert [text.split(" (")[0] for text in ask.ignored_fields] == (
        [] if variables else ["reasoning_effort"]
    )


def test_a_reply_without_reasoning(site: Site) -> None:
    site.script.say("Hello.")
    reply = post(site, reasoning_effort="low")
    assert reply.headers["X-OpenClaw-Ignored"].startswith(
        "reasoning_effort (the model's chat template does not use"
    )


@pytest.mark.parametrize("n", [1, 2])
def test_token_ids_are_returned(site: Site, n: int) -> None:
    ids = site.script.say("One two three.")
    assert "token_ids" not in post(site).text
    whole = post(site, return_token_ids=True, n=n).json()
    prompt = site.get(whole["id"]).request.prompt_ids.tolist()
    assert whole["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in whole["choices"]] == [ids] * n
    streamed = post(site, return_token_ids=True, n=n, stream=True, logprobs=True, stop="three").text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (
        len(chunks) - 1
    )
    for index in range(n):
        choices = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
        ]
        sent = [i for choice in choices for i in choice.get("token_ids", ())]
        assert sent == ids[: len(sent)]
        assert len(sent) in (len(ids) - 1, len(ids) - 2)  # up to the stop string


def test_min_tokens_delays_stop_strings(site: Site) -> None:
    first = list(site.script.say("ab ", stop=False))
    site.script.ids, least = first + site.script.say("ab ab"), len(first)
    assert post(site, stop="ab").json()["choices"][0]["message"]["content"] == ""
    reply = post(site, stop=["ab", "b a"], min_tokens=least).json()["choices"][0]
    assert reply["message"]["content"] == "ab "
    assert reply["stop_reason"] == "ab"
    assert "min_tokens" in str(site.last().request.sampling.untrainable_reason())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: expected 0 to max_tokens (8), got 9."),
        ({"min_tokens": -1}, "min_tokens: expected 0 to "),
        (
            {"min_tokens": 2, "guided_choice": ["a"]},
            "min_tokens: conflicts with guided_choice, which decides where",
        ),
    ],
)
def test_min_tokens_that_cannot_be_obeyed_are_refused(
    site: Site, fields: dict[str, Any], words: str
) -> None:
    reply = post(site, **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "min_tokens")
    assert reply.json()["error"]["message"].startswith(words)


BEGUN = {"role": "assistant", "content": "  The answer "}


@pytest.mark.parametrize("kind", ["chatml", "thinking", "llama", "qwen3", "mistral_args"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_reply_continues_a_message(start: Start, kind: str, path: str) -> None:
    site = start(kind)
    site.script.say("is 42.")
    fields: dict[str, Any] = {"messages": [USER, BEGUN], "max_tokens": 99}
    chat = (
        {"continue_final_message": True, "add_generation_prompt": False} if "chat" in path else {}
    )
    reply = site.http.post(path, fields | chat)
    assert reply.status_code == 200, reply.text
    assert "X-OpenClaw-Ignored" not in reply.headers
    assert "The answer" not in reply.text
    first = site.get(reply.json()["id"])
    prompt = site.renderer.tokenizer.backend.decode(
        first.request.prompt_ids.tolist(), skip_special_tokens=False
    )
    assert prompt.endswith("The answer ")
    assert first.request.messages == [USER]
    assert first.reply is not None
    assert first.reply.message["content"] == "  The answer is 42."
    whole = {"role": "assistant", "content": "  The answer is 42."}
    second = {"messages": [USER, whole, {"role": "user", "content": "Thanks."}], "max_tokens": 99}
    site.http.post(path, second)
    again = site.last().request.prompt_ids.tolist()
    if (
        site.renderer.bridge_unsupported_reason is None
    ):  # the next prompt continues the sampled tokens
        sampled = [*first.request.prompt_ids.tolist(), *first.reply.response_ids.tolist()]
        assert again[: len(sampled)] == sampled
    collector = Collector(site.store, site.config.collect)
    while collector.step():
        pass
    with site.store.read() as conn:
        turn, reaction = (
            turns.get(conn, first.request.id),
            turns.current_reaction(conn, first.request.id),
        )
    assert turn is not None
    assert (turn.untrainable or "").startswith("the reply continues a message of the client")
    assert reaction is not None
    assert reaction.how == "exact"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [USER]}, "a last message with role assistant"),
        (
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": []}]},
            "a last message with role",
        ),
        (
            {"messages": [USER, BEGUN], "add_generation_prompt": True},
            "conflicts with add_generation_prompt: true",
        ),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        decode(continue_final_message=True, **fields)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize("role", [{"type": "text"}, ["user"], None])
def test_a_role_that_is_not_text_is_refused(role: Any) -> None:
    with pytest.raises(RequestError, match="expected one of") as refused:
        decode(messages=[{"role": role, "content": [{"type": "text", "text": "Hello."}]}])
    assert refused.value.param == "messages[0].role"
