"""A run of episodes at the real gateway goes on, whatever one of its environments does."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.serve.conftest import KEY, Site
from tests.serve.episodes.conftest import collect, collector_of, put

from openclaw_rl.environments.episode_client import EpisodeClient, open_session
from openclaw_rl.environments.run_loop import EpisodeLoop, EpisodeResult
from openclaw_rl.environments.run_plan import RunPlan
from openclaw_rl.environments.runner_lease import LeaseFolder, hold_leases
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome

REFUSED_WRITES = {
    "refused": "INSERT ON exchanges",
    "repeated": "INSERT ON exchanges",
    "cut": "INSERT ON replies",
}
Result = tuple[str, float | None, str | None]


class OneReply:
    """Gets one reply, and then does what its task says."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @contextmanager
    def _refused_write(self, words: str) -> Iterator[None]:
        """The store refuses a write, such as that of a request, which then has no row."""
        with closing(sqlite3.connect(self._site.store.path)) as conn:
            conn.execute(
                f"CREATE TRIGGER no_room BEFORE {words} BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
            yield
            conn.execute("DROP TRIGGER no_room")

    def open_runner(self, folder: str) -> None: ...

    async def close_runner(self) -> None: ...

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {ticket.api_key}"}
        ) as http:

            async def ask(**more: Any) -> tuple[int, str]:
                body = {"messages": [{"role": "user", "content": task.id}]} | more
                async with http.post(
                    f"{self._site.url}/v1/chat/completions", json=body
                ) as response:
                    return response.status, await response.text()

            assert (await ask())[0] == 200
            if (words := REFUSED_WRITES.get(task.id)) is not None:
                with self._refused_write(words):
                    status, text = await ask(stream=task.id == "cut")
                    assert status == (200 if task.id == "cut" else 500)
                    assert "no room" in text
            if task.id == "repeated":
                assert (await ask())[0] == 200
        if task.id == "raises":
            raise ValueError("no number in the answer")
        if task.id == "expires":
            collector_of(self._site.store).end_expired_episodes(2e10)
        return PlayOutcome(status="done", reward=1.0, **task.data)


class InterruptedClient(EpisodeClient):
    """Cancels the run while the first outcome is on its way."""

    _is_interrupted = False

    async def end_episode(self, episode: str, outcome: PlayOutcome) -> PlayOutcome:
        if not self._is_interrupted:
            self._is_interrupted = next(
                t for t in asyncio.all_tasks() if t.get_name() == "run"
            ).cancel()
        await asyncio.sleep(0.05)
        return await super().end_episode(episode, outcome)


async def play_plan(
    site: Site,
    leases: LeaseFolder,
    tasks: tuple[EnvironmentTask, ...],
    on_result: Callable[[EpisodeResult], None],
    *,
    client: type[EpisodeClient] = EpisodeClient,
    continued: bool = False,
) -> None:
    current = asyncio.current_task()
    assert current is not None
    current.set_name("run")
    async with open_session(KEY) as http:
        await EpisodeLoop(
            plan=RunPlan(name="r", tasks=tasks, group_size=2),
            runner=OneReply(site),
            client=client(http, site.url, retry_seconds=1),
            leases=leases,
            limits=PlayLimits(seconds=10),
            parallel=1,
            gateway_pid=lambda: 1,
            on_result=on_result,
        ).play_all(continued=continued)


@pytest.fixture
def play_run(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def play(*tasks: EnvironmentTask, continued: bool = False) -> dict[str, list[Result]]:
        found: dict[str, list[Result]] = {}

        def take(result: EpisodeResult) -> None:
            found.setdefault(result.episode.task.id, []).append(
                (result.status, result.reward, result.reason)
            )

        with hold_leases(tmp_path, "r") as leases:
            asyncio.run(play_plan(site, leases, tasks, take, continued=continued))
            assert leases.read_leases() == []
        stored = site.http.get(f"/v1/episodes?group=r-{tasks[0].digest[:16]}-0").json()["data"]
        assert [(one["status"], one["reward"], one["reason"]) for one in stored] == found[
            tasks[0].id
        ][: len(stored)]
        spans = {one["expires_at"] - one["started_at"] for one in stored}
        assert spans == {10 + 3600}, "a verifier that takes its own time afterwards is not too late"
        return found

    return play


def task(id: str, **data: Any) -> EnvironmentTask:
    return EnvironmentTask(id=id, digest=id.ljust(64, "0"), split="train", data=data)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (task("raises"), "the runner failed: ValueError: no number in the answer"),
        (
            task("steps", steps=[{"turn": "t", "reward": 1.0}]),
            "its outcome was refused: 400: steps: episode r-",
        ),
        (task("expires"), "it expired without an outcome"),
    ],
)
def test_an_environment_that_fails_is_void_and_the_run_goes_on(
    play_run: Any, broken: EnvironmentTask, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="openclaw_rl.environments")
    found = play_run(broken, task("good", reason="half a pair: \ud800"))
    assert found["good"] == [("done", 1.0, "half a pair: \ud800")] * 2
    assert [(status, reward) for status, reward, _ in found[broken.id]] == [("void", None)] * 2
    assert all(said.startswith(reason) for _, _, said in found[broken.id])
    assert "half a pair: \ufffd" in caplog.text, "no encoding of a log has the half"


def test_an_outcome_that_is_on_its_way_when_the_run_is_interrupted_counts(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tasks, results = (task("good"),), list[EpisodeResult]()
    with hold_leases(tmp_path, "r") as leases:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(play_plan(site, leases, tasks, results.append, client=InterruptedClient))
        assert leases.read_leases() == []
        stored = site.http.get(f"/v1/episodes?group=r-{tasks[0].digest[:16]}-0").json()["data"]
        assert [(one["status"], one["reward"]) for one in stored] == [("done", 1.0)]
        asyncio.run(play_plan(site, leases, tasks, results.append, continued=True))
    assert [(one.status, one.earlier) for one in results] == [("done", True), ("done", False)]


def test_an_error_of_the_gateway_without_a_record_is_void_unless_repeated(play_run: Any) -> None:
    found = play_run(task("refused"), task("cut"), task("repeated"))
    reason = "its last request failed because of the gateway (500: the exchange could not be made durable"
    for id_ in ("refused", "cut"):
        assert [(status, reward) for status, reward, _ in found[id_]] == [("void", None)] * 2
        assert all(said.startswith(reason) for _, _, said in found[id_])
    assert found["repeated"] == [("done", 1.0, None)] * 2


def test_a_run_that_is_continued_late_goes_on_behind_groups_that_are_complete(
    site: Site, play_run: Any
) -> None:
    """The first of two episodes had ended when the run was interrupted, for longer than its episodes live."""
    late, good = task("late"), task("good")
    group = f"r-{late.digest[:16]}-0"
    put(site, f"{group}-0", group=group, task="late", ttl=10 + 3600)
    site.http.post(f"/v1/episodes/{group}-0/outcome", {"status": "done", "reward": 0.5})
    collect(site.store)
    collector_of(site.store).end_expired_episodes(2e10)
    found = play_run(late, good, continued=True)
    reason = (
        f"it was not opened in time: 409: the group {group} is complete: its group {group} has 1 known rewards of 2, "
        "and 2 are compared."
    )
    assert found["late"] == [("done", 0.5, None), ("void", None, reason)]
    assert found["good"] == [("done", 1.0, None)] * 2
