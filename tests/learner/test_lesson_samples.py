"""A turn with a lesson in its prompt has two samples: for the prompt as sampled, and for the plain prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample
from openclaw_rl.train.step_outcome import make_uses

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]


def pairs(made: LocalTrainer, draw: Draw, count: int) -> list[Sample]:
    """Samples as `SampleBuilder` makes them: the prompt with the lesson, and the plain prompt without its last ids."""
    out = []
    for scored in draw(made, 0, count, reward=1.0, hinted_prompts=()):
        plain = replace(
            scored, prompt_ids=scored.prompt_ids[::-1].copy(), reward=None, from_teacher=True
        )
        out += [scored, replace(plain, hinted_prompts=(scored.prompt_ids,))]
    return out


def test_a_turn_with_two_samples_is_one_turn(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer("combine")
    batch = pairs(made, draw, 3)
    result = made.step(batch, str(tmp_path / "policy"))
    assert (result.metrics["turns"], result.dropped) == (3, {})
    assert {"loss/binary", "loss/teacher_replies"} <= result.metrics.keys()
    uses = make_uses(1, batch, {sample.turn: 0 for sample in batch})
    assert [use.turn for use in uses] == [sample.turn for sample in batch[::2]], "each is used once"


def test_a_stale_sample_does_not_drop_the_other_one_of_its_turn(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    made = trainer("combine", max_gap=0.5)
    scored, plain = pairs(made, draw, 1)
    result = made.step(
        [replace(scored, logprobs=scored.logprobs - 1.0), plain], str(tmp_path / "policy")
    )
    assert result.dropped == {}, "the turn was trained on"
    assert result.metrics["dropped/stale"] == 0


def test_the_plain_prompt_moves_toward_the_reply_under_the_lesson(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    made = trainer("opd", learning_rate=1e-2)
    batch = [sample for sample in pairs(made, draw, 6) if sample.from_teacher]
    distances = []
    for step in range(6):
        result = made.step(batch, str(tmp_path / str(step)))
        distances.append(result.metrics["loss/teacher_replies"])
    assert distances[-1] < 0.9 * distances[0]
    assert np.all(np.isfinite(distances))
