"""Shapes of histories of real programs: whatever comes back, the person's words land on the reply that they are about.

No word may land on another turn. A missed reaction needs a stored reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.collect import history_shapes, history_shapes_changed
from tests.collect.history_shapes import Shape
from tests.collect.world import Memory, Player, Stored, message

from openclaw_rl.common.message_hash import message_text

SHAPES = history_shapes.SHAPES | history_shapes_changed.SHAPES
MAX_MISSED = 3
MISSED = frozenset(
    {"transcript: the talk so far stands in the instructions, the newest words are a message"}
)
"""Shapes in which a reaction is not linked; the reason is stored."""


def words_on_turns(player: Player, shape: Shape) -> dict[str, dict[str, str]]:
    """Return, for each request, the turns on which it put words of a person, with the last message of each."""
    out = {}
    for step in shape.steps:
        messages = [message(line) for line in step.history]
        of_tools = {message_text(m) for m in messages if m.get("role") == "tool"}
        answers = player.seen(step.name).answers
        out[step.name] = {
            turn: texts[-1] for turn, (_, texts) in answers.items() if texts[-1] not in of_tools
        }
    return out


def check(player: Player, shape: Shape) -> list[str]:
    """Assert that no word landed on a wrong turn. Return the requests whose person's words were not linked."""
    for step in shape.steps:
        player.play(step)
    missed = []
    for name, linked in words_on_turns(player, shape).items():
        expected = shape.links.get(name, {})
        for turn, text in linked.items():
            assert turn in expected or (expected and turn in shape.equal), (name, linked)
            assert all(words in text for words in expected.values()), (name, linked)
        if expected and not linked:
            missed.append(name)
            assert player.seen(name).unlinked, f"{name} is not linked, and no reason is stored"
    sessions = {name: player.seen(name).session for name in shape.sessions}
    groups = {
        label: {sessions[name] for name, of in shape.sessions.items() if of == label}
        for label in shape.sessions.values()
    }
    assert all(len(group) == 1 for group in groups.values()), sessions
    assert len(set.union(set(), *groups.values())) == len(groups), sessions
    return missed


@pytest.mark.parametrize("name", SHAPES)
def test_shape_in_memory(name: str) -> None:
    missed = check(Memory(), SHAPES[name])
    assert bool(missed) == (name in MISSED), missed


@pytest.mark.parametrize("name", SHAPES)
def test_shape_in_the_store(name: str, tmp_path: Path) -> None:
    world = Stored(tmp_path / "store.db")
    missed = check(world, SHAPES[name])
    assert bool(missed) == (name in MISSED), missed
    world.store.close()


def test_few_reactions_are_missed() -> None:
    assert len(SHAPES) >= 60
    assert len(MISSED) <= MAX_MISSED
