"""Policies that are trained in turn: from memory they get the bytes that they get from their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.learner.model.state_files import STATE_FILE
from openclaw_rl.learner.resident_states import ResidentState, ResidentStates
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
PEOPLE = ("ann", "bob")
FROM_FILES = {"checkpoint.resident_bytes": 0}


class Trained:
    """People whose policies take steps in turn, by one trainer."""

    def __init__(self, trainer: LocalTrainer, root: Path) -> None:
        self.trainer = trainer
        self.root = root
        self.folders: dict[str, str | None] = dict.fromkeys(PEOPLE)
        self.memories: dict[str, Any] = {name: {} for name in PEOPLE}
        self.from_memory = 0
        root.mkdir()

    def step(self, name: str, number: int, samples: list[Sample]) -> dict[str, str]:
        """Take a step of a person's policy. Return the digests of its files, but for that which has the settings."""
        folder = self.folders[name]
        self.from_memory += folder is not None and self.trainer.has_resident(folder)
        self.trainer.load(folder=folder, method_state=self.memories[name])
        result = self.trainer.step(samples, str(self.root / f"{number}-{name}"))
        assert result.folder is not None
        self.folders[name] = result.folder
        self.memories[name] = result.memory
        return {name: digest for name, digest in result.files.items() if name != STATE_FILE}


@pytest.mark.parametrize(
    "settings",
    [{}, {"distill.teacher": "ema"}, {"lora.dropout": 0.3}],
    ids=["adapter", "ema", "dropout"],
)
def test_steps_from_memory_and_from_files_give_equal_bytes(
    trainer: Make, draw: Draw, tmp_path: Path, settings: dict[str, Any]
) -> None:
    warm = Trained(trainer(**settings), tmp_path / "warm")
    cold = Trained(trainer(**settings, **FROM_FILES), tmp_path / "cold")
    for number in range(6):
        samples = draw(trainer(), number, noise=0.05)
        name = PEOPLE[number % 2]
        assert warm.step(name, number, samples) == cold.step(name, number, samples)
    assert (warm.from_memory, cold.from_memory) == (4, 0)


def test_a_state_that_was_removed_from_the_disk_is_not_taken_from_memory(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    warm = Trained(trainer(), tmp_path / "warm")
    cold = Trained(trainer(**FROM_FILES), tmp_path / "cold")
    samples = [draw(trainer(), number, noise=0.05) for number in range(3)]
    for one in (warm, cold):
        one.step("ann", 0, samples[0])
        one.step("bob", 1, samples[1])
        (Path(str(one.folders["ann"])) / OPTIMIZER_FILE).unlink()
    assert warm.step("ann", 2, samples[2]) == cold.step("ann", 2, samples[2])
    assert warm.from_memory == 1


def test_the_setting_bounds_the_memory_of_a_trainer(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    for number, (settings, is_kept) in enumerate([({}, True), (FROM_FILES, False)]):
        made = trainer(**settings)
        folder = str(tmp_path / f"policy-{number}")
        assert made.step(draw(made, 1, noise=0.05), folder).folder == folder
        made.load(folder=None, method_state={})
        assert made.has_resident(folder) is is_kept


def _state(numbers: int) -> ResidentState:
    return ResidentState(weights={"a": torch.zeros(numbers)}, optimizer={}, teacher={})


def test_those_that_were_not_used_for_longest_make_room() -> None:
    states = ResidentStates(max_bytes=4 * 10)
    for name in ("one", "two", "three"):
        states.add(name, _state(3))
    taken = states.take("one")
    assert taken is not None
    states.add("one", taken)
    states.add("four", _state(4))
    assert [name in states for name in ("one", "two", "three", "four")] == [True, False, True, True]
    states.add("too large", _state(11))
    assert "too large" not in states
    assert "four" in states, "nothing goes for what has no room anyway"
