"""A recorded day of an agent links as its table says, whatever else goes through the same key at the same time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.collect.recorded_exchange import LINKS, STATES, conversation, title, with_headers
from tests.collect.world import Ask, Memory, Player, Step, Stored

from openclaw_rl.types import Request

PEOPLE = ("ann", "bob", "cleo")
INTERLEAVINGS = 250


def interleaved(people: Sequence[str], rng: random.Random) -> list[Step]:
    """The people's steps in a random order that keeps each conversation's own."""
    threads = []
    for person in people:
        steps = conversation(person)
        first, last = sorted(rng.sample(range(2, len(steps) + 2), 2))
        asked, ended = title(person)
        steps.insert(first, asked)
        steps.insert(last, ended)
        threads.append(steps)
    turns = [n for n, steps in enumerate(threads) for _ in steps]
    rng.shuffle(turns)
    queues = [iter(steps) for steps in threads]
    return [next(queues[n]) for n in turns]


def check(player: Player, people: Sequence[str], where: object = None) -> None:
    for person in people:
        for name, (parent, relation, answered) in LINKS.items():
            seen = player.seen(f"{person}/{name}")
            got = {turn: how for turn, (how, _) in seen.answers.items()}
            assert seen.parent == (parent and f"{person}/{parent}"), (where, person, name, seen)
            assert seen.relation == relation, (where, person, name, seen)
            assert got == {f"{person}/{turn}": how for turn, how in answered.items()}, (
                where,
                person,
                name,
                seen,
            )
            state, cause = player.state(f"{person}/{name}")
            assert (f"{state} {cause}" if cause else state) == STATES[name], (where, person, name)


def test_a_conversation_alone_links_the_same_in_the_store(tmp_path: Path) -> None:
    world = Stored(tmp_path / "store.db")
    for step in conversation("ann"):
        world.play(step)
    for step in title("ann"):
        world.play(step)
    check(world, ["ann"])
    assert {world.seen(f"ann/{name}").session for name in LINKS if name != "title"} == {"ann/look"}
    reactions = (
        world.seen("ann/tell").answers["ann/look"],
        world.seen("ann/draft").answers["ann/noted"],
    )
    assert reactions[0] == ("exact", ("10:00 dentist, 15:00 ann's review", "3 unread"))
    assert reactions[1] == ("exact", ("[Fri 2026-11-20 19:02 UTC] Draft a mail: review at four.",))
    world.store.close()


def test_random_interleavings() -> None:
    built: dict[str, Request] = {}
    for seed in range(INTERLEAVINGS):
        rng = random.Random(seed)
        world = Memory(built)
        people = PEOPLE if seed % 4 == 0 else PEOPLE[:2]
        for step in interleaved(people, rng):
            world.play(step)
        check(world, people, where=f"seed {seed}")


@pytest.mark.parametrize("seed", range(2))
def test_random_interleavings_in_the_store(seed: int, tmp_path: Path) -> None:
    """Collecting runs behind the traffic here, by a random number of steps."""
    rng = random.Random(seed)
    world = Stored(tmp_path / "store.db")
    for step in interleaved(PEOPLE, rng):
        world.play(step, collect=rng.random() < 0.3)
    world.collect()
    check(world, PEOPLE, where=f"seed {seed}")
    world.store.close()


def test_conversations_link_the_same_with_session_headers() -> None:
    world = Memory()
    for n, step in enumerate(with_headers(conversation("ann"), "s1")):
        world.play(step)
        assert n % 2 or (isinstance(step, Ask) and world.seen(step.name).session == "s1")
    for step in title("ann"):
        world.play(step)
    check(world, ["ann"])
