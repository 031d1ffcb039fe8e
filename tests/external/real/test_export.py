"""A version of SmolLM2 as a model of its own: it is served as `model.path`, and answers as the version did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.demo.everyday_person import closed_questions
from benchmarks.in_process import Rooms
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.settings.load import Config, from_flat

MAX_TOKENS = 24
BATCHES = 2
BATCH = 4
SETTINGS: Mapping[str, Any] = {
    "practice.enabled": False,
    "serve.lessons": "off",
    "train.batch.max_wait": 1e9,
}


async def answer_greedily(rooms: Rooms) -> list[str]:
    replies = []
    for one in closed_questions()[:BATCH]:
        reply = await rooms.say(
            [{"role": "user", "content": one.question}], seed=0, temperature=0.0
        )
        replies.append(reply.text)
    return replies


async def learn(config: Config) -> tuple[int, list[str]]:
    """Train on scored replies. Return the head and its greedy replies."""
    async with Rooms(config, max_tokens=MAX_TOKENS) as rooms:
        for _ in range(BATCHES):
            for one in closed_questions()[:BATCH]:
                reply = await rooms.say(
                    [{"role": "user", "content": one.question}], seed=0, temperature=0.3
                )
                rooms.give_feedback(reply.id, score=1, correction="Answer in one word.")
            head = await rooms.settle()
        return head, await answer_greedily(rooms)


async def serve(config: Config) -> list[str]:
    async with Rooms(config, max_tokens=MAX_TOKENS) as rooms:
        return await answer_greedily(rooms)


def test_the_merged_model_answers_as_the_version_did(
    small: Mapping[str, Any], tmp_path: Path
) -> None:
    """Two steps change most weights by less than the rounding of the base's bfloat16, which is found and refused."""
    home, merged = tmp_path / "home", tmp_path / "merged"
    head, replies = asyncio.run(learn(from_flat({**small, **SETTINGS, "home": str(home)})))
    assert head >= 1
    command = ["policies", "export", str(head), "--home", str(home), "--merged"]
    done = CliRunner().invoke(cli, [*command, str(merged), "--dtype", "float32"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "bound 0.001 for float32" in done.output
    assert "licence of the base | apache-2.0" in (merged / "README.md").read_text()
    served = {**small, **SETTINGS, "home": str(tmp_path / "second"), "model.path": str(merged)}
    assert asyncio.run(serve(from_flat(served))) == replies
    done = CliRunner().invoke(cli, [*command, str(tmp_path / "lost")])
    assert "rounded to bfloat16, the merged model has " in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "merged", "second"]
