"""A gateway and a collector, and the calls of an environment that runs episodes on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.serve.conftest import Answer, Site, Start

from openclaw_rl.collect.worker import Collector
from openclaw_rl.settings.load import CollectConfig
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import training_queue
from openclaw_rl.types import JudgedTurn, JudgeInput, Verdict


@dataclass
class EpisodeRun:
    """One attempt by a program that has nothing but a base URL and a key."""

    site: Site
    id: str
    key: str

    def __post_init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, body: dict[str, Any], **headers: str) -> Answer:
        given = {"Authorization": f"Bearer {self.key}"} | {
            name.replace("_", "-"): v for name, v in headers.items()
        }
        return self.site.http.post("/v1/chat/completions", body, given)

    def step(self, observation: str, say: str = "", **more: Any) -> str:
        """One more turn of the program's conversation; return its id."""
        if say:
            self.site.script.say(say)
        self.messages.append({"role": "user", "content": observation})
        answer = self.send({"messages": self.messages} | more)
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        self.messages.append(
            {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
        )
        return str(reply["id"])

    def end(self, reward: float | None = None, **more: Any) -> Answer:
        """Post the outcome: done with this reward, or void."""
        body = {"status": "void"} if reward is None else {"status": "done", "reward": reward}
        return self.site.http.post(f"/v1/episodes/{self.id}/outcome", body | more)

    def shown(self) -> dict[str, Any]:
        return dict(self.site.http.get(f"/v1/episodes/{self.id}").json())

    def steps(self) -> dict[str, int | None]:
        return {turn["id"]: turn["step"] for turn in self.shown()["turns"]}


Open = Callable[..., EpisodeRun]


def put(site: Site, id: str, *, group: str = "g", size: int = 2, **more: Any) -> Answer:
    body = {"task": "t", "group": {"id": group, "size": size}} | more
    return site.http.send("PUT", f"/v1/episodes/{id}", json.dumps(body).encode())


@pytest.fixture
def open_episode(site: Site) -> Open:
    def open_(id: str, **more: Any) -> EpisodeRun:
        answer = put(more.pop("site", site), id, **more)
        assert answer.status_code == 200, answer.text
        return EpisodeRun(site, id, answer.json()["api_key"])

    return open_


def collector_of(store: Store, clock: Callable[[], float] | None = None) -> Collector:
    return Collector(store, CollectConfig(), clock=clock)


def collect(store: Store) -> None:
    """Process all events, as the collect worker does."""
    collector = collector_of(store)
    while collector.step():
        pass


def judge(store: Store, opinion: Callable[[JudgeInput], int | None] = lambda item: None) -> None:
    """Give a verdict on every turn that waits for one, as the judge worker does."""
    with store.write() as conn:
        for item in turns.closed_turns(conn, 1000):
            revision = item.reaction.revision
            turns.add_verdict(
                conn,
                Verdict(
                    turn=item.turn, revision=revision, judge="scripted", score=opinion(item), at=1.0
                ),
            )


def claimable(store: Store, limit: int = 8) -> list[list[JudgedTurn]]:
    with store.read() as conn:
        groups = training_queue.trainable_groups(conn, limit=limit, max_uses=1)
        return [training_queue.load_judged_turns(conn, group) for group in groups]


__all__ = [
    "EpisodeRun",
    "Open",
    "Site",
    "Start",
    "claimable",
    "collect",
    "collector_of",
    "judge",
    "put",
]
