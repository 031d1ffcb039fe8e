"""The llm judge asks for answers by a JSON schema, and does without it at endpoints that refuse the field."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from aiohttp import web
from tests.judge.endpoint import ITEM, Answer, Endpoint, completion, serving

from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.answer_schemas import EVALUATION_ANSWER, JUDGE_ANSWER, TEACHER_ANSWER
from openclaw_rl.judge.llm import LlmJudge, ReplyGrader
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import Verdict

NO_EVIDENCE = {"reason": "another topic", "score": "no evidence", "hint": None, "words": None}
GOOD = {"reason": "thanks", "score": "+1", "hint": None, "words": None}


def judge_twice(answer: Answer, **more: Any) -> tuple[list[Verdict], Endpoint]:
    """Judge the same turn twice, one after the other, with one vote each."""

    async def go() -> tuple[list[Verdict], Endpoint]:
        async with serving(answer) as endpoint:
            flat = {
                "judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1",
                "judge.model": "grader",
            }
            flat |= {"judge.num_judges": 1, "judge.retries": 0} | {
                f"judge.{key}": v for key, v in more.items()
            }
            judge = LlmJudge(from_flat(flat))
            try:
                return [await judge.judge(ITEM), await judge.judge(ITEM)], endpoint
            finally:
                await judge.close()

    return asyncio.run(go())


def refusing(words: str, status: int = 400) -> Answer:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if "response_format" in await request.json():
            return web.Response(status=status, text=words)
        return completion(json.dumps(GOOD))

    return answer


@pytest.mark.parametrize(
    ("given", "score", "reason"),
    [
        (GOOD, 1, "1 of 1 usable votes say +1"),
        (GOOD | {"score": "-1"}, -1, "1 of 1 usable votes say -1"),
        (GOOD | {"score": "0"}, 0, "1 of 1 usable votes say +0"),
        (NO_EVIDENCE, None, "1 of 1 usable votes say no evidence"),
    ],
)
def test_the_four_answers_are_distinct_and_fit_the_schema(
    given: dict[str, Any], score: int | None, reason: str
) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        sent = (await request.json())["response_format"]
        assert sent == JUDGE_ANSWER
        schema = sent["json_schema"]["schema"]
        assert [*schema["properties"]] == schema["required"] == [*given]
        assert given["score"] in schema["properties"]["score"]["enum"]
        return completion(json.dumps(given))

    (verdict, _), endpoint = judge_twice(answer)
    assert (verdict.score, verdict.reason, verdict.votes[0].reason) == (
        score,
        reason,
        given["reason"],
    )
    assert verdict.votes[0].error is None
    assert verdict.judge == "llm:grader@3"
    assert len(endpoint.seen) == 2


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("This response_format type is unavailable now", 400),
        ("'json_schema' is not supported", 422),
        ("invalid request", 400),
    ],
)
def test_an_endpoint_without_schemas_is_asked_without_one_and_logged_once(
    words: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts, endpoint = judge_twice(refusing(words, status))
    assert [verdict.score for verdict in verdicts] == [1, 1]
    assert ["response_format" in body for body in endpoint.seen] == [True, False, False]
    assert [record.message.count("response_format") for record in caplog.records] == [1]


def test_a_refusal_for_another_reason_does_not_end_the_schema(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here the prompt was too long: with the schema and without it."""

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return (
            web.Response(status=400, text="too many tokens")
            if number <= 2
            else completion(json.dumps(GOOD))
        )

    async def go() -> list[bool]:
        async with serving(answer) as endpoint:
            flat = {
                "judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1",
                "judge.model": "m",
                "judge.num_judges": 1,
            }
            judge = LlmJudge(from_flat(flat))
            try:
                with pytest.raises(JudgeError, match="HTTP 400"):
                    await judge.judge(ITEM)
                assert (await judge.judge(ITEM)).score == 1
            finally:
                await judge.close()
            return ["response_format" in body for body in endpoint.seen]

    caplog.set_level(logging.WARNING)
    assert asyncio.run(go()) == [True, False, True]
    assert not caplog.records


def test_teacher_and_grader_ask_by_their_own_schemas() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        schema = (await request.json())["response_format"]["json_schema"]
        return completion(
            '{"hint": "Be brief."}' if schema["name"] == "hint" else '{"reason": "", "score": "+1"}'
        )

    async def go() -> None:
        async with serving(answer) as endpoint:
            url = f"http://127.0.0.1:{endpoint.port}/v1"
            flat = {
                f"{one}.{key}": v
                for one in ("judge", "teacher")
                for key, v in (("base_url", url), ("model", "m"))
            }
            teacher, grader = (
                Teacher(from_flat(flat)),
                ReplyGrader(from_flat(flat | {"judge.num_judges": 1})),
            )
            bad = Verdict(turn="t", revision=1, judge="rules@1", score=-1, at=1.0)
            try:
                assert (await teacher.add_hint(ITEM, bad)).hints == ("Be brief.",)
                assert (await grader.grade_reply(ITEM.messages, ITEM.reply, ())).score == 1
            finally:
                await teacher.close()
                await grader.close()
            assert [body["response_format"] for body in endpoint.seen] == [
                TEACHER_ANSWER,
                EVALUATION_ANSWER,
            ]

    asyncio.run(go())
