"""Scores of tasks: by properties without a judge, and by the llm judge behind a real local endpoint with one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from tests.evals.test_tasks import NEUTRAL
from tests.judge.endpoint import Answer, Endpoint, always, completion, serving, vote

from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, JudgeError, OpenClawError, RequestError
from openclaw_rl.evals.reply_properties import PROPERTIES, TaskReply
from openclaw_rl.evals.task_report import report_json, report_text
from openclaw_rl.evals.task_scores import (
    EvalPlan,
    EvalResult,
    TaskScore,
    evaluate_model,
    request_reply,
    score_tasks,
)
from openclaw_rl.evals.tasks import EvalTask, conversation_tasks, tool_tasks
from openclaw_rl.judge.llm import ReplyGrader
from openclaw_rl.settings.load import Config, from_flat

CASUAL = "Yep, it's yellow, buddy, just like the sun over there, and I could go on and on about it!"


def judge_settings(port: int, **more: Any) -> Config:
    flat = {
        "kind": "llm",
        "base_url": f"http://127.0.0.1:{port}/v1",
        "model": "grader",
        "retries": 0,
    } | more
    return from_flat({f"judge.{key}": value for key, value in flat.items()})


async def neutral_reply(task: EvalTask) -> TaskReply:
    return TaskReply(text=NEUTRAL[task.name])


async def casual_reply(task: EvalTask) -> TaskReply:
    return TaskReply(text=CASUAL)


def _silent(what: str, done: int, total: int | None) -> None: ...


def scored(
    ask: Any, tasks: Sequence[EvalTask], answer: Answer | None = None
) -> tuple[list[TaskScore], Endpoint]:
    """Score conversation tasks; `answer`: of the judge's endpoint, None without a judge."""
    pairs = [("conversation", task) for task in tasks]

    async def score_all() -> tuple[list[TaskScore], Endpoint]:
        if answer is None:
            return await score_tasks(ask, pairs, {}, _silent), Endpoint()
        async with serving(answer) as endpoint:
            grader = ReplyGrader(judge_settings(endpoint.port))
            try:
                return await score_tasks(ask, pairs, {"conversation": grader}, _silent), endpoint
            finally:
                await grader.close()

    return asyncio.run(score_all())


def result_of(scores: Sequence[TaskScore]) -> EvalResult:
    return EvalResult(model="m", kinds=("conversation",), tasks=scores)


def test_without_a_judge_the_named_properties_score_and_are_defined() -> None:
    good, _ = scored(neutral_reply, conversation_tasks())
    bad, _ = scored(casual_reply, conversation_tasks()[:1])
    assert all(one.solved for one in good)
    assert bad[0].solved is False
    assert bad[0].reason == "expected at most 10 words, got 20"
    assert bad[0].violations["reference_answer"] is None
    content = report_json(result_of([*good, *bad]))
    assert content["scores"]["conversation"] == {
        "solved": 20, "of": 21, "undecided": 0, "errors": 0, "scored_by": "properties"
    }  # fmt: skip
    assert content["properties"]["max_words"]["held"] == 3
    assert content["properties"]["max_words"]["of"] == 4
    assert set(content["properties"]) == {
        name for task in content["tasks"] for name in task["violations"]
    }
    text = report_text(result_of([*good, *bad]))
    assert "| conversation | 20 | 21 | 0.95 |" in text
    assert "measurable properties" in text
    assert re.search(r"max_words +3/4 +at most the given number of words", text)
    assert max(map(len, text.splitlines())) <= 80


def test_with_a_judge_its_verdict_scores_and_is_named() -> None:
    """The judge disagrees with the properties in both directions, and it decides."""

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        record = (await request.json())["messages"][-1]["content"]
        return completion(vote(1 if CASUAL in record else -1))

    async def ask(task: EvalTask) -> TaskReply:
        return await (casual_reply if "banana" in task.name else neutral_reply)(task)

    scores, endpoint = scored(ask, conversation_tasks()[:2], answer)
    assert [one.solved for one in scores] == [True, False]
    assert [one.scored_by for one in scores] == ["llm:grader@evaluation-2"] * 2
    assert scores[0].violations["max_words"] is not None
    assert scores[1].reason == "3 of 3 usable votes say -1"
    assert len(scores[1].votes) == 3
    assert len(endpoint.seen) == 6
    system, record = (message["content"] for message in endpoint.seen[0]["messages"])
    assert "REFERENCE" in system
    for words in (
        "Answer in at most 10 words.",
        "What colour is a banana?",
        CASUAL,
        "yellow",
        "last request",
    ):
        assert words in record
    assert "llm:grader@evaluation-2" in " ".join(report_text(result_of(scores)).split())
    assert (
        report_json(result_of(scores))["scores"]["conversation"]["scored_by"]
        == "llm:grader@evaluation-2"
    )


def test_an_undecided_judge_gives_no_score() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(vote((1, -1, 0)[number % 3]))

    scores, _ = scored(neutral_reply, conversation_tasks()[:1], answer)
    zero, _ = scored(neutral_reply, conversation_tasks()[:1], always(vote(0)))
    assert [one.solved for one in (*scores, *zero)] == [None, None]
    assert [one.error for one in (*scores, *zero)] == [None, None]
    assert "abstained: a tie" in scores[0].reason
    assert report_json(result_of(scores))["scores"]["conversation"]["undecided"] == 1
    assert "| conversation | 0 | 0 | - |" in report_text(result_of(scores))


def test_a_judge_that_fails_is_an_error_and_no_bad_score() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        record = (await request.json())["messages"][-1]["content"]
        return web.Response(status=500) if "Poland" in record else completion(vote(1))

    scores, _ = scored(neutral_reply, conversation_tasks()[:2], answer)
    assert [one.solved for one in scores] == [True, None]
    assert "HTTP 500" in str(scores[1].error)
    assert len(result_of(scores).errors) == 1


def test_a_refused_request_is_not_solved_and_a_missing_reply_is_an_error() -> None:
    async def refuse(task: EvalTask) -> TaskReply:
        raise RequestError("this model has no tools", status=400)

    async def break_off(task: EvalTask) -> TaskReply:
        raise OpenClawError("no reply from the gateway")

    refused, _ = scored(refuse, tool_tasks()[:1])
    broken, _ = scored(break_off, tool_tasks()[:1])
    assert (refused[0].solved, refused[0].error, refused[0].reason) == (
        False,
        None,
        "this model has no tools",
    )
    assert (broken[0].solved, broken[0].error) == (None, "no reply from the gateway")
    json.dumps(report_json(result_of([*refused, *broken])))


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, RequestError), (404, RequestError), (500, OpenClawError), (503, OpenClawError)],
)
def test_an_error_of_the_gateway_says_whether_the_request_was_refused(
    status: int, error: type[Exception]
) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no luck"}}, status=status)

    async def ask() -> None:
        async with (
            serving(answer) as gateway,
            ClientSession(f"http://127.0.0.1:{gateway.port}") as session,
        ):
            await request_reply(session, "m", conversation_tasks()[0])

    with pytest.raises(OpenClawError, match=f"{status}.*no luck") as caught:
        asyncio.run(ask())
    assert type(caught.value) is error


def test_a_stopped_gateway_gives_no_reply() -> None:
    async def ask() -> None:
        async with ClientSession(f"http://127.0.0.1:{free_port()}") as session:
            await request_reply(session, "m", conversation_tasks()[0])

    with pytest.raises(OpenClawError, match="no reply from the gateway"):
        asyncio.run(ask())


def test_a_judge_that_does_not_answer_is_reported_before_the_model_is_loaded() -> None:
    config = judge_settings(free_port())
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"path": "/no/such/model"})}
    )
    with pytest.raises(JudgeError, match=r"connection failed.*judge\.base_url.*judge\.kind=rules"):
        evaluate_model(config, EvalPlan(kinds=["conversation"]))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="conversation, coding, tool-use, personal"):
        evaluate_model(from_flat({}), EvalPlan(kinds=["poetry"]))


def test_people_by_rules_read_the_starter_alone(tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path), "model.path": "/no/such/model"})
    with pytest.raises(
        ConfigError, match=r"personal tasks need people who understand.*--person-url"
    ):
        evaluate_model(config, EvalPlan(kinds=["personal"]))


def test_samples_of_two_tasks_have_seeds_of_their_own() -> None:
    """With one seed for all, every reply would begin with the same draw: all in one style, or none."""
    tasks = EvalPlan(kinds=["personal"], num=3, seeds=2).select_tasks()
    assert len(tasks) == 3 * 3 * 2

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion("Sure: yes.")

    async def ask() -> list[dict[str, Any]]:
        async with (
            serving(answer) as gateway,
            ClientSession(f"http://127.0.0.1:{gateway.port}") as session,
        ):
            for _ in range(2):
                for _, task in tasks[:6]:
                    await request_reply(session, "m", task)
            return gateway.seen

    sent = asyncio.run(ask())
    seeds = [body["seed"] for body in sent]
    assert len(set(seeds[:6])) == 6
    assert seeds[:6] == seeds[6:]
    assert {body["temperature"] for body in sent} == {1}


def test_the_guide_has_every_property_and_every_key_of_the_json() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md").read_text(
        encoding="utf-8"
    )
    for one in PROPERTIES.values():
        assert f"| `{one.name}` | {one.definition} | {one.source} |" in guide
    scores, _ = scored(neutral_reply, conversation_tasks()[:1])
    content = report_json(result_of(scores))
    keys = [
        *content,
        *content["scores"]["conversation"],
        *content["tasks"][0],
        *content["properties"]["finished"],
    ]
    assert [key for key in keys if f"`{key}`" not in guide] == []
