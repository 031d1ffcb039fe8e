"""Whatever is sent to the Responses routes: an answer in their shape, and never a fault of ours."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Answer, Site
from tests.serve.dialects.responses_client import FUNCTION, events_of, stored, whole
from tests.serve.dialects.test_openai_responses_input import bodies, json_values

wired = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

good = st.fixed_dictionaries(
    {"input": st.text(min_size=1, max_size=20)},
    optional={
        "instructions": st.text(max_size=10),
        "tools": st.just([FUNCTION]),
        "tool_choice": st.sampled_from(["auto", "none"]),
        "parallel_tool_calls": st.booleans(),
        "include": st.lists(
            st.sampled_from(
                ["reasoning.encrypted_content", "message.output_text.logprobs", "other"]
            ),
            max_size=3,
        ),
        "top_logprobs": st.integers(0, 3),
        "max_output_tokens": st.integers(1, 9),
        "temperature": st.floats(0, 2),
        "reasoning": st.fixed_dictionaries(
            {}, optional={"effort": st.sampled_from(["none", "low", "high"])}
        ),
        "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        "truncation": st.sampled_from(["auto", "disabled"]),
        "store": st.booleans(),
        "unknown": json_values,
    },
)


def checked(answer: Answer) -> Answer:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    return answer


@wired
@given(body=bodies, stream=st.booleans())
def test_any_body(site: Site, body: dict[str, Any], stream: bool) -> None:
    checked(site.http.post("/v1/responses", {"model": "openclaw", "stream": stream} | body))


@wired
@given(body=good)
def test_what_is_asked_rightly_is_answered(site: Site, body: dict[str, Any]) -> None:
    site.script.say(f"I look.\n{json.dumps(body['input'])}")
    answer = checked(site.http.post("/v1/responses", {"model": "openclaw", "stream": True} | body))
    response = whole(events_of(answer)[-1]["response"])
    again = stored(checked(site.http.get(f"/v1/responses/{response.id}")).json())
    assert again.output_text == response.output_text


def test_any_depth(site: Site) -> None:
    """Also one that can just be read: the answer, which repeats it, is deeper still."""
    refused = 0
    for depth in range(100, 1100, 20):
        schema = b'{"a":' * depth + b"1" + b"}" * depth
        tool = b'{"type": "function", "name": "f", "parameters": ' + schema + b"}"
        choice = b'"tool_choice": {"type": "function", "name": "f", "x": ' + schema + b"}, "
        for key in (
            b'"tools": [' + tool + b"]",
            choice + b'"tools": [' + tool + b"]",
            b'"unknown": ' + schema,
        ):
            body = b'{"model": "openclaw", "input": "hi", "stream": true, ' + key + b"}"
            answer = checked(site.http.post("/v1/responses", body))
            refused += answer.status_code == 400
            if answer.status_code == 200:
                assert "event: response.completed" in answer.text
    assert refused


@wired
@given(name=st.text(max_size=12), query=st.text(max_size=12))
def test_any_name(site: Site, name: str, query: str) -> None:
    for path in (
        f"/v1/responses/{quote(name)}",
        f"/v1/responses/{quote(name, safe='')}/input_items?limit={quote(query)}",
    ):
        checked(site.http.get(path))
    checked(site.http.send("DELETE", f"/v1/responses/{quote(name, safe='')}"))
