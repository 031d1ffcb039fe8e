"""Episodes with tools at the real gateway: calls, results, errors of the model, and tools that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.serve.conftest import Site
from tests.serve.episodes.conftest import claimable, collect, judge, put

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome

CAPITAL = {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]}
TASK = {
    "prompt": "Look up the capital of Peru.",
    "check": [{"kind": "exact", "value": "Lima"}, {"kind": "calls", "extra": True,
              "value": [{"tool": "look_up", "arguments": {"country": "Peru"}}]}],
    "calls": [{"tool": "look_up", "arguments": {"country": "Peru"}}],
    "answer": "Lima",
    "step_reward": 0.5,
}  # fmt: skip


def call(name: str = "look_up", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Service:
    """An HTTP service of the owner."""

    def __init__(self) -> None:
        self.status, self.seen = 200, list[tuple[str, Any]]()

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.headers["X-Episode-Id"], await request.json()))
        headers = {"Location": "http://127.0.0.1:9/"} if self.status == 302 else {}
        return web.Response(text="Lima", status=self.status, headers=headers)


@pytest.fixture
def service(site: Site) -> Iterator[Service]:
    made = Service()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/capitals", made.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        socket = web.TCPSite(runner, "127.0.0.1", 0)
        await socket.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/capitals"  # type: ignore[attr-defined]
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), site.loop).result(240)
    yield made
    asyncio.run_coroutine_threadsafe(runner.cleanup(), site.loop).result(240)


class Player:
    """Plays episodes of one group by the source `tools`."""

    def __init__(self, site: Site, folder: Path, url: str) -> None:
        self.site, self.folder = site, folder
        self.config: dict[str, Any] = {
            "tools": [{"name": "look_up", "parameters": CAPITAL, "http": {"url": url}}], "request": {"max_tokens": 60}
        }  # fmt: skip
        self.count, self.prompts = 0, list[str]()

    def play(
        self, *replies: str, agent: str = "chat", task: dict[str, Any] = TASK, max_steps: int = 5
    ) -> PlayOutcome:
        (self.folder / "tools.json").write_text(json.dumps(self.config))
        (self.folder / "tasks.jsonl").write_text(json.dumps(task))
        waiting = iter([list(self.site.script.say(reply)) for reply in replies])

        def next_reply(prompt: Any, version: int) -> list[int]:
            self.prompts.append(self.site.renderer.tokenizer.backend.decode(list(prompt)))
            return next(waiting)

        self.site.engine.reply = next_reply
        request = SourceRequest(
            source="tools",
            tools_config=self.folder / "tools.json",
            tasks=self.folder / "tasks.jsonl",
            agent=agent,
            search_path="/usr/bin:/bin",
        )
        kind = find_source(request)
        loaded: EnvironmentTask = next(iter(kind.make_source(request).load_tasks()))
        self.count += 1
        opened = put(self.site, f"e{self.count}", size=8, max_steps=max_steps).json()
        ticket = EpisodeTicket(
            episode=opened["id"],
            base_url=f"{self.site.url}/v1",
            api_key=opened["api_key"],
            model=opened["model"],
        )

        async def run() -> PlayOutcome:
            runner = kind.make_runner(request)
            runner.open_runner(str(self.folder))
            try:
                return await runner.play_episode(
                    loaded, ticket, str(self.folder / ticket.episode), PlayLimits(seconds=300)
                )
            finally:
                await runner.close_runner()

        return asyncio.run(run())


@pytest.fixture
def player(site: Site, service: Service, tmp_path: Path) -> Player:
    return Player(site, tmp_path, service.url)  # type: ignore[attr-defined]


def test_an_episode_links_and_trains(player: Player, service: Service) -> None:
    outcomes = [player.play(call(country="Peru"), "Lima"), player.play("I think it is Quito.")]
    assert [(o.status, o.reward) for o in outcomes] == [("done", 1.0), ("done", 0.0)], outcomes
    assert outcomes[0].parts == {"exact": 1.0, "calls": 1.0}
    assert service.seen == [("e1", {"country": "Peru"})]
    shown = player.site.http.get("/v1/episodes/e1").json()["turns"]
    assert [step["turn"] for step in outcomes[0].steps] == [turn["id"] for turn in shown]
    assert [step["reward"] for step in outcomes[0].steps] == [0.5, 0.0]
    for number, outcome in enumerate(outcomes, 1):
        body = {"status": "done", "reward": outcome.reward, "steps": list(outcome.steps)}
        assert player.site.http.post(f"/v1/episodes/e{number}/outcome", body).status_code == 200
    for number in range(3, 9):
        put(player.site, f"e{number}", size=8)
        player.site.http.post(f"/v1/episodes/e{number}/outcome", {"status": "void"})
    collect(player.site.store)
    judge(player.site.store)
    turns = [turn for group in claimable(player.site.store) for turn in group]
    assert len(turns) == 3, "both replies of the first episode and the one of the second"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (call(city="Peru"), "'country' is a required property"),
        (call(country=7), "country: 7 is not of type 'string'"),
        (call("look_down", country="Peru"), "no tool look_down. Known are look_up"),
    ],
)
def test_bad_arguments_are_answered_and_are_not_void(
    player: Player, service: Service, reply: str, words: str
) -> None:
    outcome = player.play(reply, "Lima")
    assert (outcome.status, outcome.reward, outcome.parts) == (
        "done",
        0.0,
        {"exact": 1.0, "calls": 0.0},
    )
    assert service.seen == []
    assert words in player.prompts[-1]


def test_half_of_a_surrogate_pair_is_answered_and_is_not_void(
    player: Player, service: Service
) -> None:
    """JSON can escape it, and no address can have it."""
    player.config["tools"][0]["http"]["url"] += "/{country}"
    said = '{"tool": "look_up", "arguments": {"country": "\\ud800"}}'
    outcome = player.play(said, "Lima", agent="text")
    assert (outcome.status, outcome.parts) == ("done", {"exact": 1.0, "calls": 0.0})
    assert service.seen == []
    assert "half of a surrogate pair" in player.prompts[-1]


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "Infinity"])
def test_a_number_that_no_schema_can_check_is_answered_and_is_not_void(
    player: Player, service: Service, number: str
) -> None:
    player.config["tools"][0]["parameters"] = {
        "type": "object",
        "properties": {"country": {"multipleOf": 0.1}},
    }
    player.config["request"] = {"max_tokens": 500}
    said = f'{{"tool": "look_up", "arguments": {{"country": {number}}}}}'
    outcome = player.play(said, "Lima", agent="text")
    assert (outcome.status, outcome.parts) == ("done", {"exact": 1.0, "calls": 0.0})
    assert service.seen == []
    assert "a number that is too large, or none" in player.prompts[-1]


@pytest.mark.parametrize("name", ["..", "."])
def test_an_argument_leads_to_no_other_path_of_the_service(
    player: Player, service: Service, name: str
) -> None:
    player.config["tools"][0]["http"]["url"] += "/{country}"
    outcome = player.play(call(country=name), "Lima")
    assert (outcome.status, outcome.reward) == ("done", 0.0)
    assert service.seen == []
    assert "country: expected a name, got . or .." in player.prompts[-1]


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, "done"), (422, "done"), (500, "void"), (302, "void")]
)
def test_a_service_that_breaks_is_void(
    player: Player, service: Service, status: int, outcome: str
) -> None:
    service.status = status
    assert player.play(call(country="Peru"), "Lima").status == outcome


def test_steps_that_are_used_up_leave_no_answer(player: Player) -> None:
    outcome = player.play(call(country="Peru"), call(country="Peru"), max_steps=2)
    assert (outcome.status, outcome.reward, outcome.parts["calls"]) == ("done", 0.0, 1.0)
    assert "410" in (outcome.reason or "")


def test_calls_in_the_text_of_a_reply(player: Player, service: Service) -> None:
    said = 'I look: {"tool": "look_up", "arguments": {"country": "Peru"}}'
    assert player.play(said, "Lima", agent="text").reward == 1.0
    player.config["text_calls"] = {
        "pattern": r"(?m)^- (?P<country>\w+)$",
        "tool": "look_up",
        "explain": False,
    }
    assert player.play("- Peru", "Lima", agent="text").reward == 1.0
    assert len(service.seen) == 2


def test_a_task_of_calls_alone_ends_with_the_first_reply(player: Player) -> None:
    task = {
        "prompt": "Weather in Oslo and Rome",
        "tools": [{"name": "weather", "parameters": {"type": "object"}, "result": None}],
        "check": {"kind": "calls", "value": [{"tool": "weather", "alternatives": {"city": [c], "unit": ["", "C"]}}
                                             for c in ("Rome", "Oslo")]},
        "only_calls": True,
    }  # fmt: skip
    both = call("weather", city="Oslo") + "\n" + call("weather", city="Rome", unit="C")
    assert player.play(both, task=task).reward == 1.0
    assert player.play(call("weather", city="Oslo"), task=task).reward == 0.0


def test_a_service_that_does_not_answer_is_void(player: Player) -> None:
    player.config["tools"][0]["http"]["url"] = "http://127.0.0.1:9/"
    outcome = player.play(call(country="Peru"))
    assert outcome.status == "void"
    assert "did not answer" in (outcome.reason or "")
