"""Each setting of judge and teacher changes what an endpoint gets, or what becomes of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.judge.endpoint import ITEM, completion, serving, vote

from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.judge.worker import make_judge
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.types import Verdict

RULES = "version: 1\nrules:\n  - {name: thanks, when: 'thanks', score: -1}\n"
JUDGE: dict[str, tuple[Any, dict[str, Any]]] = {
    "judge.kind": ("rules", {}),
    "judge.rules_path": ("{folder}/rules.yaml", {"judge.kind": "rules"}),
    "judge.base_url": ("http://127.0.0.1:{port}/elsewhere", {}),
    "judge.model": ("another", {}),
    "judge.api_key": ("a-key", {}),
    "judge.timeout": (0.02, {}),
    "judge.retries": (0, {}),
    "judge.temperature": (0.1, {}),
    "judge.max_tokens": (77, {}),
    "judge.num_judges": (5, {}),
    "judge.consensus_threshold": (0.9, {}),
}
TEACHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "teacher.base_url": ("http://127.0.0.1:{port}/elsewhere", {}),
    "teacher.model": ("another", {}),
    "teacher.api_key": ("a-key", {}),
    "teacher.timeout": (0.02, {}),
    "teacher.retries": (0, {}),
    "teacher.temperature": (0.1, {}),
    "teacher.max_tokens": (77, {}),
    "teacher.when": ("never", {}),
}
"""Setting -> (another value, what is set beside it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The requests without their messages, their keys, and the outcome."""

    bodies: list[dict[str, Any]]
    keys: list[str | None]
    outcome: Any


async def answer(request: web.Request, number: int) -> web.StreamResponse:
    """The first request fails, and the third gives another vote than the rest. Answers take a twentieth of a second."""
    if number == 1:
        return web.Response(status=503, headers={"Retry-After": "0"})
    await asyncio.sleep(0.05)
    return completion(vote(-1 if number == 3 else 1, "Be brief."))


async def ask_judge(config: Config) -> Any:
    judge = make_judge(config)
    try:
        verdict = await judge.judge(ITEM)
        return (
            verdict.score,
            len(verdict.votes),
            sum(one.error is not None for one in verdict.votes),
        )
    except JudgeError as error:
        return type(error)
    finally:
        if isinstance(judge, LlmJudge):
            await judge.close()


async def ask_teacher(config: Config) -> Any:
    teacher = Teacher(config)
    bad = Verdict(turn="t", revision=1, judge="rules@1", score=-1, at=1.0)
    try:
        return (
            (await teacher.add_hint(ITEM, bad)).hints
            if teacher.wants_hint(ITEM, bad)
            else "not asked"
        )
    finally:
        await teacher.close()


def observe(
    ask: Callable[[Config], Awaitable[Any]], section: str, given: dict[str, Any], folder: Path
) -> Result:
    """Ask with these settings, at an endpoint of this process. Braces in a value stand for its port and a folder."""

    async def go() -> Result:
        async with serving(answer) as endpoint:
            url = {
                f"{section}.base_url": "http://127.0.0.1:{port}/v1",
                f"{section}.model": "a-model",
            }
            values = {"judge.kind": "llm"} if section == "judge" else {}
            flat = {
                key: value.format(port=endpoint.port, folder=folder)
                if isinstance(value, str)
                else value
                for key, value in (values | url | given).items()
            }
            outcome = await ask(from_flat(flat))
            bodies = [
                {key: value for key, value in body.items() if key != "messages"}
                for body in endpoint.seen
            ]
            return Result(
                bodies=bodies,
                keys=[h.get("authorization") for h in endpoint.headers],
                outcome=outcome,
            )

    (folder / "rules.yaml").write_text(RULES)
    return asyncio.run(go())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The results without a change, by the settings beside it."""
    folder, found = tmp_path_factory.mktemp("plain"), {}
    for ask, section, changes in ((ask_judge, "judge", JUDGE), (ask_teacher, "teacher", TEACHER)):
        for _, beside in changes.values():
            name = f"{section} {beside}"
            found[name] = found.get(name) or observe(ask, section, beside, folder)
    return found


@pytest.mark.parametrize("key", JUDGE)
def test_a_setting_changes_what_is_judged(
    key: str, plain: dict[str, Result], tmp_path: Path
) -> None:
    value, beside = JUDGE[key]
    assert observe(ask_judge, "judge", beside | {key: value}, tmp_path) != plain[f"judge {beside}"]


@pytest.mark.parametrize("key", TEACHER)
def test_a_setting_changes_what_is_taught(
    key: str, plain: dict[str, Result], tmp_path: Path
) -> None:
    value, beside = TEACHER[key]
    assert (
        observe(ask_teacher, "teacher", beside | {key: value}, tmp_path)
        != plain[f"teacher {beside}"]
    )


def test_other_settings_do_not_change_the_judge(plain: dict[str, Result], tmp_path: Path) -> None:
    """Without this, a difference would say nothing."""
    other = {"train.seed": 8, "judge.workers": 1}
    assert observe(ask_judge, "judge", other, tmp_path) == plain["judge {}"]
    assert observe(ask_teacher, "teacher", other, tmp_path) == plain["teacher {}"]
