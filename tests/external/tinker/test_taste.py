"""The taste of `make demo` is learned through `--backend tinker`, on SkyRL's server.

The protocol is the demo's, without practice, which is not done at Tinker, and with 300 replies instead of 200.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import openai
import pytest
from benchmarks.demo import user_driver
from benchmarks.demo.personas import Persona
from benchmarks.faults.tinker_causes import make_settings, record_consent
from benchmarks.skyrl_server import SkyrlServer

from openclaw_rl.evals.toy_world import held_out_questions
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.timeout(3600)
TASTE, SEED, REPLIES, QUESTIONS = "casual", 0, 300, 64
ADAPTER_RANK = 16  # as at home
PARALLEL = 8  # sequences that the server samples at a time
WITHIN = 900.0  # seconds: the server compiles at each new shape


def test_the_taste_of_the_demo_is_learned(tmp_path: Path) -> None:
    model = ModelFiles.from_path(STARTER).folder
    started = SkyrlServer(tmp_path / "server", model, rank=ADAPTER_RANK)
    with started as server, tempfile.TemporaryDirectory(prefix="ocrl-") as home:
        settings = make_settings(server, server.url) | {
            "train.method": "combine",
            "train.lora.rank": ADAPTER_RANK,
        }
        config = scratch_config(Path(home), settings)
        record_consent(config)
        with SubprocessSystem(config) as system:
            before, after, failures = asyncio.run(learn_taste(system))
    print(  # noqa: T201
        f"satisfied {before.satisfaction:.3f} -> {after.satisfaction:.3f}, correct {after.correctness:.3f}"
    )
    assert failures == []
    assert before.satisfaction <= 0.65
    assert after.satisfaction >= 0.9
    assert after.correctness >= 0.9


async def learn_taste(system: SubprocessSystem) -> tuple[Any, Any, list[str]]:
    """Measure the base, talk, wait until all is learned, and measure the last version."""
    name, questions = system.config.model.name, held_out_questions(QUESTIONS, random.Random(SEED))
    api = openai.AsyncOpenAI(
        base_url=f"{system.base_url}/v1", api_key=system.api_key, max_retries=0, timeout=WITHIN
    )
    async with api:
        before = await user_driver.measure_taste(
            api, f"{name}@0", TASTE, questions, parallel=PARALLEL
        )
        persona = Persona(taste=TASTE, seed=SEED)
        talk = await user_driver.run_conversation(api, name, persona, replies=REPLIES)
        version = await asyncio.to_thread(system.wait_until_settled, WITHIN)
        after = await user_driver.measure_taste(
            api, f"{name}@{version}", TASTE, questions, parallel=PARALLEL
        )
    return before, after, talk.failures
