"""The llm judge on a model of its own: asked in tokens, answers in words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.judge.endpoint import ITEM, vote

from openclaw_rl.errors import ConfigError, EngineGone, JudgeError
from openclaw_rl.judge import local_model
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.local_model import LocalModel
from openclaw_rl.judge.preflight import check_judge_settings
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, Config, from_flat
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor, with_required_workers
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Verdict

pytestmark = pytest.mark.system

RENDERER = Renderer(ModelFiles.from_path(STARTER))
OWN = {"judge.kind": "llm", "judge.path": STARTER}


class Linked(ScriptedEngine):
    """A scripted engine behind a connection that can be made anew."""

    epoch = 1
    connected = True
    closed = False

    async def info(self) -> EngineInfo:
        if self.gone_at is not None:
            raise EngineGone("no engine answers")
        return EngineInfo(
            model="m",
            context_length=self.context_length,
            vocab_size=0,
            versions=tuple(self.held),
            device="cpu",
            dtype="float32",
            running=0,
            waiting=0,
        )

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109
        return await self.info()

    async def close(self) -> None:
        self.closed = True


def says(*answers: str, **more: Any) -> Linked:
    """One answer after the other, each over all calls."""
    turn = iter(answers)

    def reply(prompt: Sequence[int], version: int) -> list[int]:
        return [*RENDERER.tokenizer.encode(next(turn)).tolist(), RENDERER.stop_token_ids[0]]

    return Linked(reply, **more)


def settings(**judge: Any) -> Config:
    return from_flat(OWN | {f"judge.{key}": value for key, value in judge.items()})


def judged(engine: Linked, **judge: Any) -> Verdict:
    config = settings(**judge)

    async def go() -> Verdict:
        asked = LocalModel(engine, RENDERER, config.judge, url="here")
        try:
            return await LlmJudge(config, asked=asked).judge(ITEM)
        finally:
            await asked.close()

    return asyncio.run(go())


def test_votes_come_from_tokens() -> None:
    engine = says(vote(-1, "Be brief."), vote(-1, "Be brief."), vote(1, "Go on."))
    verdict = judged(engine, temperature=0.3, max_tokens=99)
    assert (verdict.score, verdict.hints, len(verdict.votes)) == (-1, ("Be brief.",), 3)
    assert verdict.judge.startswith("llm:starter@")
    assert [policies[0].version for policies in engine.loads] == [0]
    call = engine.calls[0]
    assert (call.version, call.sampling.temperature, call.sampling.max_tokens) == (0, 0.3, 99)
    prompt = RENDERER.tokenizer.backend.decode(call.prompt_ids.tolist(), skip_special_tokens=False)
    assert "thanks" in prompt, "the reaction is in it"
    assert engine.closed


@pytest.mark.parametrize(
    ("engine", "more", "words"),
    [
        (
            lambda: says("Hm.", "No.", "?"),
            {},
            "judge starter at here: no usable vote: expected a JSON object",
        ),
        (lambda: says(" ", " ", " "), {}, "got an empty one .finish_reason stop."),
        (
            lambda: says(vote(1), vote(1), vote(1), context_length=20),
            {},
            "judge.path has a context of 20",
        ),
        (
            lambda: says(vote(1), vote(1), vote(1), delay=1.0),
            {"timeout": 0.2},
            "no answer within 0.2 s",
        ),
        (
            lambda: says(vote(1), vote(1), vote(1), gone_at=0),
            {},
            "the judge's own engine: no engine answers",
        ),
        (lambda: says(vote(1), vote(1), vote(1)), {"max_tokens": 16}, "expected a JSON object"),
    ],
)
def test_unusable_answers_give_no_verdict(
    engine: Callable[[], Linked], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(JudgeError, match=words):
        judged(engine(), **more)


def test_a_restarted_engine_loads_its_model_again() -> None:
    engine = says(*[vote(1)] * 9)

    async def go() -> None:
        asked = LocalModel(engine, RENDERER, settings().judge, url="here")
        for epoch in (1, 1, 2):
            engine.epoch = epoch
            await asked.complete_chat([{"role": "user", "content": "?"}])

    asyncio.run(go())
    assert len(engine.loads) == 2


def test_the_judge_engine_differs_from_the_policy_engine_in_model_and_home(tmp_path: Path) -> None:
    config = from_flat(
        OWN
        | {
            "home": str(tmp_path),
            "judge.path": "/models/j",
            "engine.max_loaded_versions": 8,
            "judge.gpus": ("3",),
        }
    )
    theirs = local_model.engine_config(config)
    assert (theirs.model.path, theirs.home_dir, theirs.engine.backend) == (
        "/models/j",
        tmp_path / "judge",
        "embedded",
    )
    assert (theirs.engine.max_loaded_versions, theirs.engine.gpus) == (2, ("3",))
    assert theirs.engine_socket != config.engine_socket


@pytest.mark.parametrize(
    ("more", "rooms", "there"),
    [
        (OWN, ("engine", "gateway", "judge"), True),
        (OWN, ("judge",), True),
        (OWN, ("engine", "gateway"), False),
        ({}, ("judge",), False),
    ],
)
def test_the_engine_of_a_local_judge_runs_beside_the_judge(
    more: dict[str, str], rooms: tuple[str, ...], there: bool
) -> None:
    assert (local_model.ENGINE_PROCESS in with_required_workers(from_flat(more), rooms)) is there


def test_a_judge_model_that_cannot_be_started_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs an engine that is started here"):
        from_flat(OWN | {"engine.backend": "openai", "engine.url": "http://127.0.0.1:9/v1"})


def test_a_teacher_with_only_a_model_name_uses_the_judge_endpoint() -> None:
    where = {"judge.base_url": "http://127.0.0.1:9/v1", "judge.api_key": "k", "teacher.model": "t"}
    teacher = from_flat(where).teacher
    assert (teacher.wanted, teacher.base_url, teacher.api_key) == (
        True,
        "http://127.0.0.1:9/v1",
        "k",
    )
    with pytest.raises(ConfigError, match=r"teacher\.model is t, and no endpoint serves it"):
        check_judge_settings(from_flat({"teacher.model": "t"}))


def test_the_starter_as_a_judge_gives_no_verdict_but_answers(tmp_path: Path) -> None:
    """Its room for real: the supervisor's child, the socket, and words that are no vote."""
    config = from_flat(OWN | {"home": str(tmp_path), "judge.num_judges": 2, "judge.max_tokens": 16})
    prepare_home(config)
    prepare_home(local_model.engine_config(config))

    async def go() -> JudgeError:
        stop, supervisor = (
            asyncio.Event(),
            Supervisor(config, [local_model.ENGINE_PROCESS], echo=False),
        )
        running = asyncio.create_task(supervisor.run(stop))
        judge = LlmJudge(config)
        give_up = time.monotonic() + 240
        try:
            while True:
                try:
                    await judge.judge(ITEM)
                except JudgeError as error:
                    if "no usable vote: expected a JSON object" in str(error):
                        return error
                assert time.monotonic() < give_up, "its engine did not come"
                assert not running.done(), running.result()
                await asyncio.sleep(0.05)
        finally:
            await judge.close()
            stop.set()
            await running

    assert "judge starter at" in str(asyncio.run(go()))
    assert not local_model.engine_config(config).engine_socket.exists()
