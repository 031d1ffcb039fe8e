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
MISSED: frozenset[str] = frozenset()
"""Shapes in which a reaction is not linked; the reason is stored."""
FAILING: frozenset[str] = frozenset(
    {
        "loop: question and final answer are sent back",
        "loop: question and a short final answer are sent back",
        "loop: two loops in a row, both without their tools",
        "loop: two loops in a row with short answers",
        "loop: three steps are left out",
        "loop: words beside the call are left out with it",
        "loop: a clock in the system prompt changes, too",
        "loop: the oldest messages are dropped, too",
        "loop: the client writes a line of its own in place of call and result",
        "loop: only the results are left out, and the answer is short",
        "loop: another conversation got the same answer to another question",
        "loop: the person asks something else after the loop, then the loop's answer is repeated",
        "retrieval: Open WebUI puts a file around the newest question",
        "retrieval: Open WebUI with a file, short questions and short answers",
        "retrieval: documents of a program of one's own around the newest question",
        "retrieval: CrewAI's current task around each question",
        "retrieval: the context behind the question",
        "retrieval: a context is added to the old question",
        "retrieval: documents as a user message behind the newest question",
        "retrieval: documents around the question of a tool loop",
        "memory: a block before the newest words, gone the next time",
        "memory: a reminder beside the newest words, gone the next time, with short answers",
        "memory: Cline's environment details change in every message",
        "memory: environment details alone are no reaction",
        "memory: an editor's context around a short question, gone the next time",
        "merge: two messages of the person become one afterwards",
        "merge: the instructions are put into the first user message",
        "merge: one message is split into two afterwards",
        "transcript: the whole talk grows in one user message",
        "transcript: the talk so far stands in the instructions, the newest words are a message",
        "compaction: a summary in front of the last exchange of a tool loop",
        "changed: blank lines are added to a reply",
        "changed: a blank line is added to a short reply, and the talk goes on",
        "changed: white space at the ends of lines is removed",
        "changed: the calls of two steps in one message only afterwards, and a short answer",
        "changed: the texts of two steps joined",
        "changed: the texts of three steps joined, with other white space",
        "changed: CAMEL sends the answer before the last call",
        "changed: a short answer before the last call",
        "changed: the answer to a call's result is left out, the person objects",
    }
)
"""Shapes that are not linked as the table says, yet."""
CASES = [
    pytest.param(name, marks=[pytest.mark.xfail(strict=True)] if name in FAILING else [])
    for name in SHAPES
]


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


@pytest.mark.parametrize("name", CASES)
def test_shape_in_memory(name: str) -> None:
    missed = check(Memory(), SHAPES[name])
    assert bool(missed) == (name in MISSED), missed


@pytest.mark.parametrize("name", CASES)
def test_shape_in_the_store(name: str, tmp_path: Path) -> None:
    world = Stored(tmp_path / "store.db")
    missed = check(world, SHAPES[name])
    assert bool(missed) == (name in MISSED), missed
    world.store.close()


def test_few_reactions_are_missed() -> None:
    assert len(SHAPES) >= 60
    assert len(MISSED) <= MAX_MISSED
