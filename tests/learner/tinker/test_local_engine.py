"""Training at Tinker while a local engine serves: bases are compared, and adapters are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.tinker.conftest import Make, StatusError, make_sample, take_step
from tests.learner.tinker.training_sdk import TrainingSdk
from tests.tinker.archive_server import ArchiveServer, make_archive, make_files, make_matrices

from openclaw_rl.common.policy_digest import TINKER_FILE, digest_of_folder
from openclaw_rl.engines.adapter_file import read_adapter
from openclaw_rl.errors import ModelError, TrainerAbsent
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import from_flat
from openclaw_rl.tinker import adapter_download
from openclaw_rl.types import PolicyRef

LOCAL = {"engine.backend": "embedded", "model.path": "here/model"}
GAP = 0.02  # nats by which a local engine differs from the service
SAMPLED_HERE = [
    make_sample(1, 1.0, gap=GAP),
    make_sample(2, -1.0, gap=GAP, hints=1),
    make_sample(3, None, gap=GAP, hints=2),
    make_sample(4, -1.0, gap=GAP),
]


@pytest.fixture
def archives(sdk: TrainingSdk, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    monkeypatch.setattr(adapter_download, "RETRY_SECONDS", 0.0)
    with ArchiveServer(make_archive(make_files())) as server:
        sdk.archives = server.url
        yield server


def test_each_version_has_the_adapter_that_a_local_engine_loads(
    make: Make, sdk: TrainingSdk, archives: ArchiveServer, tmp_path: Path
) -> None:
    trainer = make(**LOCAL)
    one = take_step(trainer, tmp_path / "000001-a", SAMPLED_HERE)
    files = {"adapter_config.json", "adapter_model.safetensors", TINKER_FILE, "trainer.json"}
    assert set(one.files) == files
    assert one.digest == digest_of_folder(str(one.folder))
    assert read_adapter(PolicyRef(version=1, path=one.folder, digest=one.digest)).rank == 8
    assert archives.paths == ["/sampler_weights/openclaw-000001-a"]
    assert [model["train_unembed"] for model in sdk.models] == [False], (
        "the matrices that the local trainer has"
    )
    trainer.load(folder=one.folder, method_state=one.memory)
    two = take_step(trainer, tmp_path / "000002-a", SAMPLED_HERE)
    assert sdk.restored[-1] == "tinker://run/weights/openclaw-000001-a"
    assert (two.metrics["step"], set(two.files)) == (2, files)


def test_no_adapter_is_downloaded_if_tinker_serves(
    make: Make, sdk: TrainingSdk, archives: ArchiveServer, tmp_path: Path
) -> None:
    assert set(take_step(make(), tmp_path / "000001-a").files) == {TINKER_FILE, "trainer.json"}
    assert archives.paths == []
    assert [model["train_unembed"] for model in sdk.models] == [True]


def far_off(samples: list[Sample], turns: int) -> list[Sample]:
    """The first `turns` samples as another model would have sampled them."""
    return [
        replace(s, logprobs=s.logprobs - np.float32(0.3)) if i < turns else s
        for i, s in enumerate(samples)
    ]


def test_another_base_is_found_before_the_first_step(
    make: Make, sdk: TrainingSdk, archives: ArchiveServer, tmp_path: Path
) -> None:
    trainer = make(**LOCAL)
    words = r"serves .here/model. is not the one at the Tinker service .org/model.: their log-prob.* differ by 0.3"
    with pytest.raises(TrainerAbsent, match=words) as caught:
        take_step(trainer, tmp_path / "000001-a", far_off(SAMPLED_HERE, 3))
    assert "\n" not in str(caught.value)
    assert (sdk.gradients, sdk.steps) == ([], [])
    restored = len(sdk.restored)
    with pytest.raises(TrainerAbsent, match="is not the one"):
        take_step(trainer, tmp_path / "000001-b", SAMPLED_HERE)
    assert len(sdk.restored) == restored, (
        "no further attempt is paid for, until the settings are corrected"
    )
    assert take_step(make(**LOCAL), tmp_path / "000001-c", SAMPLED_HERE).folder is not None


def test_a_few_deviating_turns_are_not_another_base(
    make: Make, sdk: TrainingSdk, archives: ArchiveServer, tmp_path: Path
) -> None:
    result = take_step(make(**LOCAL), tmp_path / "000001-a", far_off(SAMPLED_HERE, 1))
    assert result.folder is not None


def test_turns_of_a_trained_version_do_not_identify_the_base(
    make: Make, archives: ArchiveServer, tmp_path: Path
) -> None:
    settings = LOCAL | {"train.safety.max_turn_log_ratio": 9.0}
    later = [replace(sample, version=3) for sample in far_off(SAMPLED_HERE, 4)]
    assert take_step(make(**settings), tmp_path / "000001-a", later).folder is not None
    trainer = make(**settings)
    one = take_step(trainer, tmp_path / "000001-b", SAMPLED_HERE)
    trainer.load(folder=one.folder, method_state=one.memory)
    assert take_step(trainer, tmp_path / "000002-b", far_off(SAMPLED_HERE, 4)).folder is not None


def test_replies_under_lessons_do_not_identify_the_base(
    make: Make, archives: ArchiveServer, tmp_path: Path
) -> None:
    """They were sampled under another prompt than the one that the service scores."""
    hint = (np.array([7], np.int32),)
    told = [
        replace(s, reward=None, from_teacher=True, hinted_prompts=hint)
        for s in far_off(SAMPLED_HERE, 4)
    ]
    assert (
        take_step(make(**LOCAL), tmp_path / "000001-a", [SAMPLED_HERE[0], *told]).folder is not None
    )


def test_a_version_that_cannot_be_downloaded_is_not_published(
    make: Make, sdk: TrainingSdk, archives: ArchiveServer, tmp_path: Path
) -> None:
    trainer = make(**LOCAL)
    sdk.fails["archive"] = StatusError(503, "no place for an archive")
    with pytest.raises(TrainerAbsent, match="no place for an archive"):
        take_step(trainer, tmp_path / "000001-a", SAMPLED_HERE)
    archives.archive = make_archive(make_files(make_matrices("model.layers.0.mlp.w1")))
    with pytest.raises(
        TrainerAbsent, match=r"a local engine cannot load it. Set engine.backend to tinker"
    ):
        take_step(trainer, tmp_path / "000001-b", SAMPLED_HERE)
    assert not list(tmp_path.glob("000001-*"))
    archives.archive = make_archive(make_files())
    assert take_step(trainer, tmp_path / "000001-c", SAMPLED_HERE).folder is not None


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [({}, LOCAL, "that version was tinker"), (LOCAL, {}, "that version was another one")],
    ids=["tinker, then here", "here, then tinker"],
)
def test_a_version_of_another_kind_of_engine_is_refused(
    make: Make,
    archives: ArchiveServer,
    tmp_path: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    words: str,
) -> None:
    one = take_step(make(**before), tmp_path / "000001-a", SAMPLED_HERE)
    with pytest.raises(ModelError, match=words):
        make(**after).load(folder=one.folder, method_state=one.memory)
    make(**before).load(folder=one.folder, method_state=one.memory)


@pytest.mark.parametrize("backend", ["embedded", "vllm", "sglang"])
def test_each_engine_that_loads_adapters_may_serve(backend: str) -> None:
    from_flat({"engine.backend": backend, "train.trainer": "tinker", "gate.kind": "numbers"})
