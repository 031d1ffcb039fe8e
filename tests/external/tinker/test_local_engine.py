"""Training at SkyRL's server while an engine here serves: adapters are downloaded, and the bases are compared."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.skyrl_server import RANK, SkyrlServer
from safetensors.torch import load_file
from tests.external.tinker.conftest import BATCH, Settings, make_trainer, reference_logprobs
from tests.external.tinker.test_system import (
    WITHIN,
    home,
    post,
    talk,
    trained_there,
    wait_for_version,
)

from openclaw_rl.errors import TrainerAbsent
from openclaw_rl.learner.loss.scored_batch import plain_sequence
from openclaw_rl.methods.types import Sample
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.tinker.consent import EVENT

__all__ = ["home"]
pytestmark = pytest.mark.timeout(3600)


def sampled_here(model: Path) -> list[Sample]:
    """The batch with the log-probabilities that an engine here would have recorded: those of a forward pass."""
    return [
        replace(s, logprobs=reference_logprobs(model, None, s.prompt_ids, s.response_ids))
        for s in BATCH
    ]


def test_the_adapter_in_the_folder_is_the_policy_at_the_service(
    settings: Settings, model: Path, tmp_path: Path
) -> None:
    """And the next step starts from it. Where the base is another one, no step is taken."""
    config = settings(**{"engine.backend": "embedded", "train.optimizer.learning_rate": 0.05})
    samples, trainer = sampled_here(model), make_trainer(config)
    with pytest.raises(TrainerAbsent, match=r"is not the one at the Tinker service.*differ by \d"):
        make_trainer(config).step(
            BATCH, str(tmp_path / "000001-other")
        )  # log-probabilities of no model
    one = trainer.step(samples, str(tmp_path / "000001-a"))
    there = trainer._session.policy_logprobs([plain_sequence(sample) for sample in samples])
    folder = Path(str(one.folder))
    adapter = load_file(folder / "adapter_model.safetensors")
    named = json.loads((folder / "adapter_config.json").read_text())
    assert (named["r"], named["lora_alpha"], named["base_model_name_or_path"]) == (
        RANK,
        32,
        str(model),
    )
    assert {"q_proj", "down_proj"} <= set(named["target_modules"])
    for sample, logprobs in zip(samples, there, strict=True):
        here = reference_logprobs(model, adapter, sample.prompt_ids, sample.response_ids)
        np.testing.assert_allclose(here, logprobs, atol=1e-3)
        assert np.abs(here - sample.logprobs).max() > 0.05, "the step moved the policy"
    trainer.load(folder=one.folder, method_state=one.memory)
    assert trainer.step(samples, str(tmp_path / "000002-a")).metrics["step"] == 2


def test_people_talk_to_an_engine_here_and_it_serves_what_was_trained_there(
    tmp_path: Path, home: Path
) -> None:
    model = ModelFiles.from_path(STARTER).folder
    with SkyrlServer(tmp_path / "server", model) as server:
        settings = {"engine.backend": "embedded"} | trained_there(server, model)
        config = scratch_config(home, settings)
        with Store.open(config.store_path) as store, store.write() as conn:
            consents.record_consent(conn, EVENT, server.url, ("train",), time.time())
        with SubprocessSystem(config) as system:
            fingerprints = []
            for version in (1, 2):
                replies = [talk(system, f"What is {n} plus {version}?") for n in range(4)]
                fingerprints.append(replies[-1]["system_fingerprint"])
                for i, reply in enumerate(replies):
                    post(system, "/v1/feedback", {"id": reply["id"], "score": 1 if i % 2 else -1})
                wait_for_version(config.store_path, version)
                end = time.monotonic() + WITHIN
                while talk(system, "Hello")["system_fingerprint"] == fingerprints[-1]:
                    assert time.monotonic() < end, system.log_tail()
    assert len(set(fingerprints)) == 2, "the engine here served the first version"
    with Store.open(config.store_path) as store, store.read() as conn:
        made = [policies.get(conn, version) for version in (1, 2)]
    for version in made:
        assert version is not None
        assert {"adapter_model.safetensors", "adapter_config.json", "tinker_version.json"} <= set(
            version.files
        )
        assert version.metrics["gap"] < 1e-3, (
            "of the base, then of the adapter: the service has what is served here"
        )
