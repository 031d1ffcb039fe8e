"""Formats as SGLang, llama.cpp and Outlines force them, over all four APIs: obeyed, or refused with 400."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from tests.serve.conftest import TOOLS, USER, Answer, Site, Start

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
EBNF = 'root ::= city " is " size\ncity ::= "London" | "Paris"\nsize ::= "big" | "small"'
ARITHMETIC = r"""
# Of llama.cpp.
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]{1,3} ws
ws    ::= [ \t]*
"""
FORMS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "SGLang's regex": ({"regex": r"(Paris|London)/\d"}, ["Paris/1"], ["Paris", "Rome/1"]),
    "SGLang's ebnf": ({"ebnf": EBNF}, ["Paris is big"], ["Paris", "Rome is big"]),
    "SGLang's json_schema": ({"json_schema": json.dumps(SCHEMA)}, ['{"a": 1}'], ["{}", "1"]),
    "llama.cpp's json_schema": ({"json_schema": SCHEMA}, ['{"a": 1}'], ['{"a": "b"}']),
    "llama.cpp's grammar": (
        {"grammar": ARITHMETIC},
        ["a+(b*12)=7\n", "x_1 = y\na=b\n"],
        ["a+=7\n", "a=1234\n", "A=1\n"],
    ),
    "llama.cpp's json_object": (
        {"structured_outputs": {"json_object": True}},
        ['{"b": []}'],
        ["[1]", "b"],
    ),
}
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 64},
}
OWN_FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"response_format": {"type": "json_object"}},
    "/v1/completions": {"response_format": {"type": "json_object"}},
    "/v1/responses": {"text": {"format": {"type": "json_object"}}},
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}


def ask(site: Site, path: str, **fields: Any) -> Answer:
    return site.http.post(path, {"model": "openclaw"} | APIS[path] | fields)


def sentences(site: Site, texts: list[str]) -> list[str]:
    """Return the texts that the last request's grammar takes as a whole."""
    grammar = site.last().request.sampling.grammar
    assert grammar is not None
    tokenizer = llguidance.LLTokenizer(str(site.renderer.files.folder / "tokenizer.json"))
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    taken = []
    for text in texts:
        matcher.reset()
        ids = site.renderer.tokenizer.encode(text).tolist()
        if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
            taken.append(text)
    return taken


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_obeyed(site: Site, path: str, name: str) -> None:
    fields, right, wrong = FORMS[name]
    site.script.say(right[0])
    answer = ask(site, path, **fields)
    assert answer.status_code == 200, answer.text
    assert "X-OpenClaw-Ignored" not in answer.headers
    assert sentences(site, [*right, *wrong]) == right
    assert site.last().request.sampling.untrainable_reason()


@pytest.mark.parametrize("path", APIS)
def test_two_forms_are_refused(site: Site, path: str) -> None:
    forms: list[dict[str, Any]] = [fields for fields, _, _ in FORMS.values()]
    for first, second in (
        (forms[0], forms[1]),
        (forms[0], forms[2]),
        (forms[3], forms[4]),
        (forms[4], {"guided_regex": "a"}),
        (forms[0], OWN_FIELDS[path]),
        (forms[3], OWN_FIELDS[path]),
    ):
        answer = ask(site, path, **first, **second)
        assert answer.status_code == 400, (first, second)
        assert "Send one of them" in answer.text
    assert site.count() == 0


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"regex": 5}, "regex: expected text, got"),
        ({"ebnf": "root ::= ("}, "ebnf: expected a Lark or GBNF grammar"),
        ({"grammar": {"type": "regex", "value": "a"}}, "grammar: expected text, got"),
        ({"grammar": 'answer ::= "a"'}, "No 'root' rule"),
        ({"json_schema": "{"}, "json_schema: expected a JSON schema, got text"),
        ({"json_schema": [1]}, "json_schema: expected a JSON schema that is an object"),
        ({"structural_tag": "{}"}, "structural_tag: not supported"),
        ({"grammar_lazy": True, "grammar": EBNF}, "grammar_lazy: a grammar that begins"),
        ({"structured_outputs": {"json_object": "yes"}}, "expected true or false"),
    ],
)
def test_what_cannot_be_forced_is_refused(
    site: Site, path: str, fields: dict[str, Any], words: str
) -> None:
    answer = ask(site, path, **fields)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert words in message
    assert site.count() == 0


@pytest.mark.parametrize("path", APIS)
def test_no_form_is_forced_by_an_empty_field(site: Site, path: str) -> None:
    nothing = {"regex": None, "ebnf": "", "grammar": "", "json_schema": None, "grammar_lazy": False}
    answer = ask(site, path, **nothing, structured_outputs={"json_object": False, "json": None})
    assert answer.status_code == 200, answer.text
    assert site.last().request.sampling.grammar is None


FIELDS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
)
KINDS = ("json", "regex", "choice", "grammar", "json_object")


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("nothing", [None, False, ""])
def test_a_field_that_asks_for_nothing_conflicts_with_no_other(
    site: Site, path: str, nothing: Any
) -> None:
    answer = ask(site, path, **dict.fromkeys(FIELDS, nothing), structured_outputs=nothing)
    assert answer.status_code == 200, answer.text
    assert site.last().request.sampling.grammar is None
    forms: list[dict[str, Any]] = [{"guided_json": SCHEMA}, {"guided_json_object": True}]
    for form in [*forms, *(fields for fields, _, _ in FORMS.values())]:
        unused = {field: nothing for field in FIELDS if field not in form}
        if "structured_outputs" not in form:
            unused["structured_outputs"] = dict.fromkeys(KINDS, nothing)
        site.script.say("{}")
        answer = ask(site, path, **form, **unused)
        assert answer.status_code == 200, (form, answer.text)
        assert site.last().request.sampling.grammar is not None
    own = OWN_FIELDS[path]
    site.script.say("{}")
    answer = ask(site, path, **own, **dict.fromkeys(FIELDS, nothing))
    assert answer.status_code == 200, answer.text
    assert site.last().request.sampling.grammar is not None


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("value", [0, 1, "yes", [], {}])
def test_any_json_is_asked_for_with_true(site: Site, path: str, value: Any) -> None:
    for fields in ({"guided_json_object": value}, {"structured_outputs": {"json_object": value}}):
        answer = ask(site, path, **fields)
        assert answer.status_code == 400, fields
        assert "json_object: expected true or false" in answer.text
    assert site.count() == 0


@pytest.mark.parametrize("path", APIS)
def test_an_engine_without_grammars_refuses_each_form(start: Start, path: str) -> None:
    site = start(grammar=False)
    for name, (fields, _, _) in FORMS.items():
        answer = ask(site, path, **fields)
        assert answer.status_code == 400, name
        assert "does not support grammars" in answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_schema_of_a_json_object_is_obeyed(site: Site, path: str) -> None:
    """As llama.cpp and Together take it."""
    for form in (
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
    ):
        site.script.say('{"a": 1}')
        assert ask(site, path, response_format=form).status_code == 200
        assert sentences(site, ['{"a": 1}', "{}"]) == ['{"a": 1}']


def test_a_required_call_and_a_form_are_refused(site: Site) -> None:
    for fields, _, _ in FORMS.values():
        answer = ask(site, "/v1/chat/completions", tools=TOOLS, tool_choice="required", **fields)
        assert "conflicts with tool_choice, which requires a call" in answer.text


def test_openais_client_passes_the_fields_on(site: Site) -> None:
    """Outlines' `from_sglang` sends `regex` and `ebnf` in this way."""
    site.script.say("Paris is big")
    for extra in ({"ebnf": EBNF}, {"regex": "Paris is big"}, {"grammar": EBNF}):
        reply = site.client().chat.completions.create(
            model="openclaw", messages=[USER], extra_body=extra
        )
        assert reply.choices[0].message.content == "Paris is big"
        assert sentences(site, ["Paris is big", "Paris"]) == ["Paris is big"]
