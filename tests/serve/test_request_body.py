"""Bounds on what a body contains, before it is decoded or tokenised."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.conftest import KEY, USER, Answer, Site, Start

from openclaw_rl.common.large_requests import RequestCancelled, run_large, stop_if_cancelled
from openclaw_rl.errors import RequestError
from openclaw_rl.serve import request_body

CHAT = "/v1/chat/completions"
TEXT = st.text(alphabet='ab"\\{[,:é\n', max_size=12)
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """Objects, lists, and strings with the keys."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(counted, value))
    return int(isinstance(value, str))


def is_refused(body: bytes) -> bool:
    try:
        request_body.check_value_count(body)
    except RequestError:
        return True
    return False


@settings(max_examples=100, deadline=None)
@given(JSON, st.booleans(), st.integers(1, 40))
def test_the_count_of_values_is_exact(value: Any, ascii_only: bool, piece: int) -> None:
    """Whatever a string contains, and wherever a piece of the count ends."""
    body, count = json.dumps(value, ensure_ascii=ascii_only).encode(), counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_body, "_COUNT_BYTES", piece)
        patch.setattr(request_body, "MAX_JSON_VALUES", count)
        assert not is_refused(body)
        patch.setattr(request_body, "MAX_JSON_VALUES", count - 1)
        assert is_refused(body)


def test_numbers_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_JSON_COMMAS", 10)
    assert not is_refused(json.dumps([1] * 10 + ["," * 100]).encode())
    assert is_refused(json.dumps([1] * 12).encode())


def body_with(values: str, *, field: str = "tools") -> str:
    return '{"messages":[{"role":"user","content":"a"}],"' + field + '":' + values + "}"


def list_of(item: str, size: int = 4 * 10**6) -> str:
    return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


MANY = {
    "messages": '{"messages":' + list_of('{"role":"user","content":"a"}') + "}",
    "objects": body_with(list_of("{}"), field="metadata"),
    "numbers": body_with(list_of("0", 5 * 10**6), field="metadata"),
    "keys": body_with("0," + ",".join(f'"{n:x}":0' for n in range(200_000)), field="x"),
    "tools": body_with(list_of('{"a":{}}')),
}


def post(site: Site, text: str, path: str = CHAT) -> Answer:
    return site.http.post(path, text.encode(), {"Authorization": f"Bearer {KEY}"})


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("name", MANY)
def test_many_values_are_refused_before_they_are_decoded(
    start: Start, name: str, path: str
) -> None:
    site = start(settings={"engine.max_context": 2**20})
    answer = post(site, MANY[name], path)
    assert answer.status_code == 413, answer.text
    assert "too many JSON values" in answer.json()["error"]["message"]


def test_many_top_level_fields_are_refused(site: Site) -> None:
    body = {"messages": [USER]} | {f"x{n}": 0 for n in range(1000)}
    answer = post(site, json.dumps(body))
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "the body has 1001 fields; expected at most 1000.",
    )


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_more_messages_than_tokens_are_too_long(site: Site, path: str) -> None:
    body = {"messages": [{"role": "assistant", "content": "a"}, USER] * 1025, "max_tokens": 1}
    answer = post(site, json.dumps(body), path)
    assert answer.status_code == 400
    words = answer.json()["error"]["message"]
    assert "2050" in words
    assert (
        "prompt is too long" in words if path == "/v1/messages" else "at least 2050 tokens" in words
    )


def test_a_text_longer_than_its_tokens_can_be_is_refused_without_the_tokenizer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start()
    longest = site.renderer.tokenizer.longest_token_bytes
    assert longest is not None

    def count_beyond(*_: Any) -> int:
        raise AssertionError("tokenized")

    monkeypatch.setattr(site.renderer.tokenizer, "count_beyond", count_beyond)
    text = "a b " * (longest * 2048 // 4 + longest)
    answer = post(site, json.dumps({"messages": [{"role": "user", "content": text}]}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


# ------------------------------------------------------------------------ threads of large requests


def test_a_cancelled_call_stops_and_others_go_on() -> None:
    ended = threading.Event()

    def work(steps: int) -> int:
        try:
            for _ in range(steps):
                stop_if_cancelled()
                time.sleep(0.005)
        except RequestCancelled:
            ended.set()
            raise
        return steps

    async def cancel_one() -> int:
        tasks = [asyncio.create_task(run_large(work, steps)) for steps in (100_000, 20)]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        assert await asyncio.to_thread(ended.wait, 5)
        return await tasks[1]

    assert asyncio.run(cancel_one()) == 20
    assert work(1) == 1, "outside those threads nothing is cancelled"


def test_large_requests_leave_threads_to_others() -> None:
    end = threading.Event()

    async def main() -> None:
        tasks = [asyncio.create_task(run_large(end.wait)) for _ in range(100)]
        await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(5):
                await asyncio.to_thread(str)
        finally:
            end.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
