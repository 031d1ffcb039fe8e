"""The llm judge against a real local server that speaks the wire, well and badly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.judge.endpoint import ITEM, Answer, Endpoint, always, completion, serving, then, vote

from openclaw_rl.common.retries.backoff import backoff_delay, retry_after_seconds
from openclaw_rl.errors import ConfigError, JudgeError
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.types import Verdict


def settings(port: int, **more: Any) -> Config:
    flat = {
        "judge.kind": "llm",
        "judge.base_url": f"http://127.0.0.1:{port}/v1",
        "judge.model": "grader",
        "judge.timeout": 2.0,
        "judge.num_judges": 3,
    }
    return from_flat(flat | {f"judge.{key}": value for key, value in more.items()})


def judged(answer: Answer, **more: Any) -> tuple[Verdict, Endpoint]:
    async def go() -> tuple[Verdict, Endpoint]:
        async with serving(answer) as endpoint:
            judge = LlmJudge(settings(endpoint.port, **more))
            try:
                return await judge.judge(ITEM), endpoint
            finally:
                await judge.close()

    return asyncio.run(go())


def test_votes_are_asked_in_parallel_and_the_majority_holds() -> None:
    together = 0
    most = 0

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1
        return completion(vote(-1, "Be brief.") if number != 2 else vote(1, "Go on."))

    verdict, endpoint = judged(answer, api_key="secret", temperature=0.3, max_tokens=99)
    assert most == 3
    assert (verdict.score, verdict.hints, verdict.turn, verdict.revision) == (
        -1,
        ("Be brief.",),
        "t",
        1,
    )
    assert len(verdict.votes) == 3
    assert "grader" in verdict.judge
    body = endpoint.seen[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == (
        "grader",
        0.3,
        99,
        False,
    )
    assert "thanks" in body["messages"][-1]["content"]
    assert endpoint.headers[0]["authorization"] == "Bearer secret"
    assert endpoint.headers[0]["x-turn-type"] == "side"


@pytest.mark.parametrize(
    ("contents", "score", "hints"),
    [
        ([vote(1), vote(1), "nonsense"], 1, ()),
        ([f"Sure!\n```json\n{vote(-1, 'Be brief.')}\n```", "?", "?"], -1, ("Be brief.",)),
        ([vote(0), vote(0), vote(-1, "Be brief.")], 0, ()),
        ([vote(1, "a b c"), vote(-1, "d e f"), "?"], None, ()),
        ([vote(1), vote(0), vote(-1)], None, ()),
        (
            ["<think>" + vote(1) + "</think>" + vote(-1), "<think>maybe " + vote(1), vote(-1)],
            -1,
            (),
        ),
    ],
)
def test_unusable_votes_do_not_count_and_ties_abstain(
    contents: list[str], score: int | None, hints: tuple[str, ...]
) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(contents[number - 1])

    verdict, _ = judged(answer)
    assert (verdict.score, verdict.hints) == (score, hints)
    unusable = sum("score" not in c or "<think>maybe" in c for c in contents)
    assert sum(v.error is not None for v in verdict.votes) == unusable


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        (lambda: web.Response(status=429, headers={"Retry-After": "0"}), 2),
        (lambda: web.Response(status=500, text="boom", headers={"Retry-After": "0.01"}), 2),
        (lambda: web.Response(status=503, headers={"Retry-After": "0"}), 2),
        (
            lambda: web.json_response(
                {"error": {"message": "max_tokens is not supported"}}, status=400
            ),
            2,
        ),
        (
            lambda: web.json_response(
                {"detail": "temperature: extra inputs are not permitted"}, status=422
            ),
            2,
        ),
    ],
)
def test_temporary_failures_are_retried(first: Callable[[], web.Response], asked: int) -> None:
    verdict, endpoint = judged(then(first, 1, vote(1)), num_judges=1)
    assert verdict.score == 1
    assert len(endpoint.seen) == asked


def test_a_refused_option_is_replaced_or_left_out() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if "max_tokens" in await request.json():
            return web.json_response(
                {"error": {"message": "Unsupported parameter: 'max_tokens'"}}, status=400
            )
        return completion(vote(1))

    verdict, endpoint = judged(answer)
    assert [v.score for v in verdict.votes] == [1, 1, 1]
    assert endpoint.seen[-1]["max_completion_tokens"] == 1024
    assert "max_tokens" not in endpoint.seen[-1]


def test_a_closed_connection_is_asked_again() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if number == 1:
            assert request.transport is not None
            request.transport.abort()
        return completion(vote(1))

    verdict, endpoint = judged(answer, num_judges=1)
    assert verdict.score == 1
    assert len(endpoint.seen) == 2


def test_a_slow_answer_times_out() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        await asyncio.sleep(5)
        return completion(vote(1))

    with pytest.raises(JudgeError, match=r"no answer within 0\.1 s \(judge\.timeout\)"):
        judged(answer, timeout=0.1)


@pytest.mark.parametrize(
    ("answer", "words", "asked"),
    [
        (always("The reply was fine."), "expected a JSON object with score", 3),
        (always(None), "empty", 3),
        (always("", "length"), "judge.max_tokens", 3),
        (
            then(lambda: web.Response(text="<html>hello</html>"), 99, ""),
            "expected a chat completion",
            3,
        ),
        (then(lambda: web.json_response([1]), 99, ""), "expected a chat completion", 3),
        (then(lambda: web.json_response({"choices": []}), 99, ""), "expected a chat completion", 3),
        (
            then(lambda: web.json_response({"choices": [{"message": None}]}), 99, ""),
            "expected a chat completion",
            3,
        ),
        (then(lambda: web.Response(body=b"\xff\xfe\x00"), 99, ""), "expected a chat completion", 3),
        (then(lambda: web.Response(status=401, text="no key"), 99, ""), "Set judge.api_key", 3),
        (then(lambda: web.Response(status=404, text="no model"), 99, ""), "judge.model", 3),
        (
            then(lambda: web.Response(status=302, headers={"Location": "/elsewhere"}), 99, ""),
            "HTTP 302",
            3,
        ),
        (
            then(lambda: web.Response(status=429, headers={"Retry-After": "3600"}), 99, ""),
            "HTTP 429",
            3,
        ),
        (
            then(lambda: web.Response(status=500, headers={"Retry-After": "0"}), 99, ""),
            "HTTP 500",
            6,
        ),
    ],
)
def test_no_usable_vote_is_an_error_that_describes_the_answer(
    answer: Answer, words: str, asked: int
) -> None:
    async def go() -> None:
        async with serving(answer) as endpoint:
            judge = LlmJudge(settings(endpoint.port, retries=1))
            try:
                with pytest.raises(JudgeError) as caught:
                    await judge.judge(ITEM)
            finally:
                await judge.close()
            assert words in str(caught.value)
            assert "grader" in str(caught.value)
            assert len(str(caught.value)) < 600
            assert len(endpoint.seen) == asked

    asyncio.run(go())


@pytest.mark.parametrize(
    "answer",
    [
        always("SECRET words of a person"),
        always('{"score": "SECRET"}'),
        always('{"score": 1, "hint": ["SECRET"]}'),
        always("", "SECRET"),
        then(lambda: web.Response(text="<html>SECRET</html>"), 99, ""),
        then(lambda: web.Response(status=400, text="bad request: SECRET"), 99, ""),
    ],
)
def test_an_error_describes_the_answer_without_quoting_it(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(JudgeError) as caught:
        judged(answer)
    assert "SECRET" not in str(caught.value) + caplog.text


def test_a_refused_connection_gives_no_verdict() -> None:
    async def go() -> None:
        async with serving(always("")) as endpoint:
            port = endpoint.port
        judge = LlmJudge(settings(port, retries=0))
        try:
            with pytest.raises(JudgeError, match="connection failed"):
                await judge.judge(ITEM)
        finally:
            await judge.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("host", "url", "model", "refused"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/v1", "openclaw", True),
        ("127.0.0.1", "http://localhost:8000/v1", "whatever", True),
        ("0.0.0.0", "http://[::1]:8000/v1", "openclaw", True),
        ("10.1.2.3", "http://10.1.2.3:8000/v1", "openclaw", True),
        ("127.0.0.1", "http://127.0.0.1:8000/v1", "openclaw@0", False),
        ("127.0.0.1", "http://127.0.0.1:8000/v1", "openclaw@1", True),
        ("127.0.0.1", "http://127.0.0.1:8000/v1", "openclaw@10", True),
        ("127.0.0.1", "http://127.0.0.1:8001/v1", "openclaw", False),
        ("127.0.0.1", "https://judge.example/v1", "openclaw", False),
        ("127.0.0.1", "http://judge.example:8000/v1", "openclaw", False),
    ],
)
def test_the_live_policy_never_judges_itself(
    host: str, url: str, model: str, refused: bool
) -> None:
    flat = {"serve.host": host, "serve.port": 8000, "serve.api_key": "k" * 16}
    config = from_flat(flat | {"judge.kind": "llm", "judge.base_url": url, "judge.model": model})
    if refused:
        with pytest.raises(ConfigError, match="openclaw@0"):
            LlmJudge(config)
    else:
        assert model in LlmJudge(config).name


@pytest.mark.parametrize("url", ["ftp://x/v1", "localhost:8001", "http://", "http://x:99999/v1"])
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"judge\.base_url"):
        LlmJudge(from_flat({"judge.kind": "llm", "judge.base_url": url, "judge.model": "m"}))


def test_retry_delays_double_up_to_a_limit() -> None:
    for failures in range(1, 60):
        full = min(2.0 ** (failures - 1), 30.0)
        assert full / 2 <= backoff_delay(failures, first=1.0, longest=30.0) <= full


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, now=60.0) == seconds
