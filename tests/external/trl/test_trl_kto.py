"""TRL trains the policy of a whole system: a simulated user talks, and KTO learns the taste from the reactions."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.demo import user_driver
from benchmarks.demo.personas import Persona
from benchmarks.demo.user_driver import ConversationLog, TasteEvaluation

from openclaw_rl.evals.styles import Taste
from openclaw_rl.evals.toy_world import held_out_questions
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.timeout(1800)
EXAMPLE = Path(__file__).parents[3] / "examples" / "other_trainers" / "trl_kto.py"
LOG = logging.getLogger("trl")
REPLIES, QUESTIONS = 250, 100
WITHIN = 300.0  # seconds
SETTINGS = {
    "train.trainer": "external",
    "train.method": "binary",
    "gate.kind": "numbers",
    "practice.enabled": False,
    "serve.lessons": "off",  # the weights alone are measured
}


@contextmanager
def running_example(home: Path) -> Iterator[Path]:
    """The example as a program of its own. Yields the file of its output."""
    output = home / "logs" / "trl.log"
    command, environment = (
        [sys.executable, EXAMPLE, "--home", str(home)],
        os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    with (
        output.open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield output
        finally:
            process.terminate()


async def talk_and_measure(
    system: SubprocessSystem, taste: Taste
) -> tuple[TasteEvaluation, ConversationLog, TasteEvaluation]:
    questions, name = held_out_questions(QUESTIONS, random.Random(0)), system.config.model.name

    async def wait_for_training(_: ConversationLog) -> None:
        """How many versions are served must not depend on how fast this machine trains."""
        await asyncio.to_thread(system.wait_until_settled, WITHIN, 0.2)

    async with user_driver.openai_client(system.base_url, system.api_key) as api:
        before = await user_driver.measure_taste(api, f"{name}@0", taste, questions)
        talk = await user_driver.run_conversation(
            api, name, Persona(taste=taste, seed=0), replies=REPLIES, between=wait_for_training
        )
        version = await asyncio.to_thread(system.wait_until_settled, WITHIN)
        return (
            before,
            talk,
            await user_driver.measure_taste(api, f"{name}@{version}", taste, questions),
        )


@pytest.mark.parametrize("taste", ["short", "formal"])
def test_the_example_learns_the_taste_and_no_turn_is_in_two_batches(
    tmp_path: Path, taste: Taste
) -> None:
    config = scratch_config(tmp_path, SETTINGS)
    with SubprocessSystem(config) as system, running_example(config.home_dir) as output:
        before, talk, after = asyncio.run(talk_and_measure(system, taste))
        said = output.read_text(errors="replace")
    with Store.open(config.store_path) as store, store.read() as conn:
        versions = [policy for policy in policies.list_all(conn) if policy.version]
        uses = Counter(
            use.turn
            for policy in versions
            for use in policies.uses_of_version(conn, policy.version)
        )
    LOG.warning("%s: satisfied %.3f -> %.3f", taste, before.satisfaction, after.satisfaction)
    LOG.warning("correct %.3f -> %.3f", before.correctness, after.correctness)
    LOG.warning("%d versions from %d turns", len(versions), len(uses))
    assert before.satisfaction <= 0.65
    assert after.satisfaction >= 0.9, said[-2000:]
    assert before.correctness - after.correctness <= 0.1
    assert not talk.failures
    assert len(talk.versions) >= 5, "versions were served while people talked"
    assert set(uses.values()) == {1}
    assert said.count(" kept\n") == len(versions)
