"""The rows of a turn that has two: what is trained on is recorded as a use, whatever trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.train.conftest import put
from tests.train.external_world import World, take_step

from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.other_trainers.batch_stream import BatchStream
from openclaw_rl.other_trainers.slime.samples import split_fit_rows
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.types import JudgedTurn

LESSON = "Keep answers short."


@pytest.mark.timeout(60)
def test_slime_keeps_turns_with_a_trained_row(
    world: World, local: LocalTrainer, renderer: Renderer, judged: Callable[..., JudgedTurn]
) -> None:
    messages = [{"role": "user", "content": "Where is the Louvre?"}]
    hinted = with_hint(
        messages, lessons_hint([LESSON]), lambda message: False, renderer.hint_format
    )
    request = {"lessons": {"1": LESSON}, "prompt_ids": renderer.render(hinted).prompt_ids}
    given = put(world.store, [judged(score=1, request=request) for _ in range(4)])
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        assert [row["turn"] for row in batch.rows] == [turn for turn in given for _ in range(2)]
        kept, dropped = split_fit_rows(batch.rows, temperature=1.0, has_teacher=True)
        assert [row["from_teacher"] for row in kept] == [False] * 4
        assert dropped == {}, "each has a row that is trained on"
        _, without = split_fit_rows(batch.rows, temperature=0.5, has_teacher=True)
        assert set(without) == set(given)
        batch.rows = kept
        take_step(local, batch)
        assert batch.acknowledge(dropped=dropped)
    assert world.used() == {1: given}
