"""Scores of Langfuse and LangSmith become feedback of the real gateway, and follow their changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.connect.services import LangfuseApi, LangSmithApi, Service
from tests.serve.conftest import KEY, USER, Site, Start, empty_store, renderers, start

from openclaw_rl.connect.feedback.langfuse import LangfuseSource
from openclaw_rl.connect.feedback.langsmith import LangSmithSource
from openclaw_rl.connect.feedback.reply_texts import find_ids, find_text
from openclaw_rl.connect.feedback.score_relay import (
    RoundReport,
    ScoreRelay,
    ScoreSource,
)
from openclaw_rl.errors import OpenClawError

__all__ = ["empty_store", "renderers", "start"]
SourceMaker = Callable[[aiohttp.ClientSession], ScoreSource]


@pytest.fixture
def site(start: Start) -> Site:
    return start()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Service]]:
    services: list[Service] = []

    def begin(api: Any) -> Service:
        services.append(Service(api.route))
        return services[-1]

    yield begin
    for service in services:
        service.close()


def ask(site: Site, said: str) -> str:
    site.script.say(said)
    return str(site.client().chat.completions.create(model="openclaw", messages=[USER]).id)


def run_round(site: Site, make: SourceMaker, folder: Path) -> RoundReport:
    async def main() -> RoundReport:
        async with aiohttp.ClientSession() as http:
            source = make(http)
            file = folder / "relays" / f"{source.name}.json"
            relay = ScoreRelay(source, http, gateway=site.url, key=KEY, state_file=file, days=7)
            return await relay.run_round()

    return asyncio.run(main())


def given(site: Site) -> list[tuple[str, int | None, str | None, str | None]]:
    listed = site.http.get("/v1/feedback").json()["data"]
    return [(item["target"], item["score"], item["comment"], item["by"]) for item in listed]


def now() -> str:
    return datetime.now(UTC).isoformat()


def observation(trace: str, id_: str, output: Any, kind: str = "GENERATION") -> dict[str, Any]:
    place = {"id": id_, "traceId": trace, "projectId": "p", "type": kind}
    return place | {"startTime": now(), "output": output, "sessionId": None, "userId": None}


def score(id_: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": "user-feedback", "value": value, "timestamp": now()} | more


def langfuse(service: Service, names: tuple[str, ...] = ("user-feedback",)) -> SourceMaker:
    def make(http: aiohttp.ClientSession) -> ScoreSource:
        return LangfuseSource(
            http, url=service.url, public_key="pk", secret_key="sk", names=names, scale="0..1"
        )

    return make


def langsmith(service: Service) -> SourceMaker:
    def make(http: aiohttp.ClientSession) -> ScoreSource:
        return LangSmithSource(http, url=service.url, key="k", names=("thumb",), scale="0..1")

    return make


def test_scores_of_langfuse_are_given_changed_and_taken_back(
    site: Site, serve: Callable[[Any], Service], tmp_path: Path
) -> None:
    paris = ask(site, "Paris is the capital of France.")
    rome = ask(site, "Rome is the capital of Italy.")
    api = LangfuseApi()
    make = langfuse(serve(api))
    api.observations = [
        observation(
            "t1", "o1", '{"role": "assistant", "content": "Paris is the capital of France."}'
        ),
        observation("t2", "o2", "Rome is the capital of Italy."),
        observation("t2", "o3", "formatted by a step around it", kind="SPAN"),
    ]
    api.add_score(score("s1", 1, traceId="t1", comment="Right."))
    api.add_score(score("s2", 0, traceId="t2", dataType="BOOLEAN", authorUserId="ann"))
    api.add_score(score("s3", 1, traceId="t2", source="EVAL"))
    api.add_score(score("s4", 0.1, traceId="t2", name="latency"))
    api.add_score(score("s5", "👍", traceId="t2", observationId="o2"))
    report = run_round(site, make, tmp_path)
    assert (report.given, report.problems) == (3, [])
    assert given(site)[::-1] == [
        (paris, 1, "Right.", None),
        (rome, -1, None, "ann"),
        (rome, 1, None, None),
    ]
    assert run_round(site, make, tmp_path) == RoundReport(), "nothing has changed"

    api.add_score(score("s1", 0, traceId="t1"))
    del api.scores["s5"]
    report = run_round(site, make, tmp_path)
    assert (report.given, report.retracted) == (1, 2)
    assert given(site)[::-1] == [(rome, -1, None, "ann"), (paris, -1, None, None)]


def test_a_score_waits_for_its_trace(
    site: Site, serve: Callable[[Any], Service], tmp_path: Path
) -> None:
    api = LangfuseApi()
    make = langfuse(serve(api))
    api.add_score(score("s1", 1, traceId="t1"))
    assert run_round(site, make, tmp_path).problems == ["s1: its trace has no answer yet"]
    target = ask(site, "Hello again.")
    api.observations = [observation("t1", "o1", "Something else.")]
    (problem,) = run_round(site, make, tmp_path).problems
    assert "no reply under this API key fits text 'Something else.'" in problem
    api.observations = [observation("t1", "o1", {"id": target, "choices": []})]
    assert run_round(site, make, tmp_path).given == 1
    assert given(site)[0][0] == target


def test_feedback_of_langsmith_is_given_changed_and_taken_back(
    site: Site, serve: Callable[[Any], Service], tmp_path: Path
) -> None:
    target = ask(site, "Paris is the capital of France.")
    api = LangSmithApi()
    make = langsmith(serve(api))
    message = {"type": "ai", "content": "Paris is the capital of France.", "id": "run-1"}
    api.runs["r1"] = {
        "id": "r1",
        "outputs": {
            "generations": [[{"text": message["content"], "message": {"kwargs": message}}]]
        },
    }
    base = {"run_id": "r1", "key": "thumb", "created_at": now(), "modified_at": now()}
    api.feedback["f1"] = base | {"id": "f1", "score": 1.0, "correction": {"text": "Lyon."}}
    api.feedback["f2"] = base | {"id": "f2", "score": 0, "feedback_source": {"type": "model"}}
    api.feedback["f3"] = base | {"id": "f3", "score": 0.5, "key": "other"}
    assert run_round(site, make, tmp_path).given == 1
    assert given(site) == [(target, 1, None, None)]
    api.feedback["f1"] |= {"score": 0.0, "modified_at": now(), "comment": "No."}
    report = run_round(site, make, tmp_path)
    assert (report.given, report.retracted) == (1, 1)
    assert given(site) == [(target, -1, "No.", None)]
    api.feedback.clear()
    assert run_round(site, make, tmp_path).retracted == 1
    assert given(site) == []


def test_a_service_that_refuses_is_named(
    site: Site, serve: Callable[[Any], Service], tmp_path: Path
) -> None:
    class Refusing:
        def route(self, *_request: Any) -> tuple[int, Any]:
            return 401, {"message": "no"}

    service = serve(Refusing())
    with pytest.raises(OpenClawError, match="LANGFUSE_PUBLIC_KEY"):
        run_round(site, langfuse(service), tmp_path)
    with pytest.raises(OpenClawError, match="LANGSMITH_API_KEY"):
        run_round(site, langsmith(service), tmp_path)


@pytest.mark.parametrize(
    ("output", "text", "ids"),
    [
        ("Hello.", "Hello.", []),
        ('"Hello."', "Hello.", []),
        ({"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}, "Hello.", []),
        (
            {
                "id": "chatcmpl-0123456789abcdef012345678901",
                "choices": [{"message": {"content": "Hello."}}],
            },
            "Hello.",
            ["chatcmpl-0123456789abcdef012345678901"],
        ),
        ({"messages": [{"content": "hi"}, {"content": "Hello."}]}, "Hello.", []),
        ({"output": {"answer": "Hello."}}, "Hello.", []),
        ("{not json", "{not json", []),
        ({"tool": "look"}, None, []),
        (None, None, []),
    ],
)
def test_answers_are_found_in_outputs(output: Any, text: str | None, ids: list[str]) -> None:
    assert find_text(output) == text
    assert find_ids(output) == ids
