"""Each setting of `rollout` changes what `run_rollouts` does, at a gateway of this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw_rl.rollouts.runner import RolloutTask, run_rollouts
from openclaw_rl.settings.load import from_flat

ROLLOUT = """
import asyncio
running = most = 0
async def {name}({arguments}):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.02)
    running -= 1
    for _ in range(3):
        await {model}.generate("hi")
    return most
"""
CHANGES: dict[str, Any] = {
    "rollout.function_path": "{folder}/another.py",
    "rollout.generate_path": "{folder}/generate.py",
    "rollout.workers": 1,
    "rollout.parallel_envs": 4,
    "rollout.max_turns": 2,
    "rollout.per_prompt": 3,
}


def observe(given: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of four tasks, without what differs each time, and how many of them ran at once."""
    for name, function, arguments, model in (
        ("plain", "rollout", "model, task", "model"),
        ("another", "rollout", "model, task", "model"),
        ("generate", "generate", "args, sample, sampling_params", "args.model"),
    ):
        (folder / f"{name}.py").write_text(
            ROLLOUT.format(name=function, arguments=arguments, model=model)
        )
    if "rollout.generate_path" not in given:
        given = {"rollout.function_path": "{folder}/plain.py"} | given
    flat = {
        key: value.format(folder=folder) if isinstance(value, str) else value
        for key, value in given.items()
    }
    number = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal number
        number += 1
        message = {"role": "assistant", "content": "hello"}
        return web.json_response(
            {"id": f"r{number}", "choices": [{"message": message}], "ready": True}
        )

    async def main() -> tuple[list[dict[str, Any]], int]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        where = {"serve.port": runner.addresses[0][1], "serve.api_key": "k", "home": str(folder)}
        out = folder / "out"
        try:
            outcomes = await run_rollouts(
                from_flat(where | flat), [RolloutTask(text=str(n)) for n in range(4)], out
            )
        finally:
            await runner.cleanup()
        records = [json.loads(outcome.file.read_text()) for outcome in outcomes]
        told = [
            {key: r.get(key) for key in ("file", "function", "replies", "error")} for r in records
        ]
        return told, max((r.get("result", 0) for r in records), default=0)

    return asyncio.run(main())


def test_the_debug_log_follows_a_rollout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="openclaw_rl.rollouts")
    observe({}, tmp_path)
    assert caplog.text.count(f"rollout of {tmp_path}/plain.py starts") == 4
    assert caplog.text.count(" of 5 characters to ") == 12
    assert caplog.text.count("ended after 3 replies") == 4


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_rollouts(key: str, tmp_path: Path) -> None:
    assert observe({key: CHANGES[key]}, tmp_path) != observe({}, tmp_path)


def test_nothing_else_changes_them(tmp_path: Path) -> None:
    """Without this, a difference would say nothing."""
    assert observe({"train.seed": 8}, tmp_path) == observe({}, tmp_path)
