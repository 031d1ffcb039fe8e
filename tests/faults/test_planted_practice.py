"""The checker of `make faults` finds every fault of practice that is planted in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults.client_log import ForgottenLesson
from benchmarks.faults.practice_invariants import check_head_state, check_practice
from sqlalchemy import delete, insert, update
from tests.store import world

from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store import leases, reactions, schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.practice_turns import PRACTICE_SCOPE, PracticeTurn
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Kind, Origin, Use

SETTINGS = PracticeConfig(replies=4)
LESSON = Lesson(id="aa", key="key", text="Keep answers short.", made_at=1.0, reinforced_at=1.0)
ROUNDS = (("p0", "p1", "p2", "p3"), ("p4", "p5", "p6", "p7"))
PUBLISHED_AT = 20.0  # seconds; of version 1


def practice_turn(id: str, place: int, source: str = "t0") -> PracticeTurn:
    request = world.request(
        id,
        scope=PRACTICE_SCOPE,
        kind=Kind.PRACTICE,
        marks=(),
        origin=Origin.TEACHER if place < 2 else None,
    )
    reply = replace(world.reply(world.request(id)), mark=None)
    return PracticeTurn(
        request=request, reply=reply, source=source, lessons={"aa": LESSON.text}, hint=LESSON.text
    )


def publish_version(store: Store, version: int, turns: tuple[str, ...]) -> None:
    with store.write() as conn:
        lease = leases.acquire(conn, "train", "me", 15.0, 1e9)
        assert lease is not None
        uses = [Use(policy=version, turn=turn, number=1) for turn in turns]
        policies.publish(conn, lease, world.policy(version, version - 1), uses, PUBLISHED_AT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two rounds of practice, of which version 1 was trained on the first."""
    with Store.open(tmp_path / "store.db") as store:
        with store.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
            world.judged(conn, "t0")
            lessons.add_lesson(conn, LESSON)
            for ids in ROUNDS:
                practice_turns.add_turns(
                    conn, [practice_turn(id_, n) for n, id_ in enumerate(ids)], at=12.0
                )
        publish_version(store, 1, ROUNDS[0])
        yield store


def execute(store: Store, *statements: Any) -> None:
    with store.write() as conn:
        for statement in statements:
            conn.execute(statement)


def check(store: Store, *forgotten: ForgottenLesson) -> list[str]:
    with store.read() as conn:
        return [*check_practice(conn, SETTINGS, forgotten), *check_head_state(conn)]


def store_half_a_round(store: Store) -> None:
    with store.write() as conn:
        practice_turns.add_turns(conn, [practice_turn(f"q{n}", n) for n in range(3)], at=12.0)


def store_a_round_in_two_parts(store: Store) -> None:
    for part in ((0, 1), (2, 3)):
        with store.write() as conn:
            practice_turns.add_turns(conn, [practice_turn(f"q{n}", n) for n in part], at=12.0)
            if part[0] == 0:
                world.serve(conn, "between")


def mix_two_heads(store: Store) -> None:
    publish_version(store, 2, ())
    execute(store, update(schema.exchanges).where(schema.exchanges.c.id == "p3").values(version=1))


def lose_the_teacher(store: Store) -> None:
    execute(
        store, update(schema.exchanges).where(schema.exchanges.c.id == "p1").values(origin=None)
    )


def train_on_half_a_round(store: Store) -> None:
    publish_version(store, 2, ROUNDS[1][:2])


def lose_a_lesson_link(store: Store) -> None:
    execute(store, delete(schema.practice_lessons).where(schema.practice_lessons.c.turn == "p5"))


def lose_a_verdict(store: Store) -> None:
    execute(store, delete(schema.verdicts).where(schema.verdicts.c.turn == "p5"))


def lose_a_reply(store: Store) -> None:
    execute(
        store,
        update(schema.exchanges).where(schema.exchanges.c.id == "p5").values(status="running"),
    )


def react_to_practice(store: Store) -> None:
    said = [{"role": "user", "content": "Thanks."}]
    with store.write() as conn:
        reactions.record_reaction(
            conn, "p5", messages=said, signature=b"s", source="later", how="exact", at=13.0
        )


def use_a_turn_of_two_versions(store: Store) -> None:
    publish_version(store, 2, ())
    execute(store, insert(schema.uses).values(policy=2, turn="p0", number=2, place=0))


def reject_the_head(store: Store) -> None:
    execute(
        store,
        update(schema.policies).where(schema.policies.c.version == 1).values(state="rejected"),
    )


PLANTED: dict[Callable[[Store], None], str] = {
    store_half_a_round: "the round of q0 is stored in part: 3 replies of 4",
    store_a_round_in_two_parts: "the round of q0 is stored in part",
    mix_two_heads: "the round of p0 has replies of several heads",
    lose_the_teacher: "the round of p0 has not 2 replies of the teacher",
    train_on_half_a_round: "the round of p4 was trained on in part",
    use_a_turn_of_two_versions: "the practice turn p0 is used by the versions [1, 2]",
    lose_a_lesson_link: "the practice turn p5 has no source, or no lesson",
    lose_a_verdict: "the practice turn p5 has no verdict",
    lose_a_reply: "the practice turn p5 is running",
    react_to_practice: "the practice turn p5 has a reaction",
    reject_the_head: "the head is version 1, which is rejected",
}


def test_practice_without_a_fault_has_no_violation(store: Store) -> None:
    assert check(store) == []
    publish_version(store, 2, ROUNDS[1])
    assert check(store, ForgottenLesson(id="aa", at=PUBLISHED_AT + 1)) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(store: Store, plant: Callable[[Store], None]) -> None:
    plant(store)
    found = check(store)
    assert any(PLANTED[plant] in line for line in found), found


def test_practice_of_a_lesson_that_was_forgotten_before_is_found(store: Store) -> None:
    found = check(store, ForgottenLesson(id="aa", at=PUBLISHED_AT - 1))
    assert found == ["version 1 was trained on 4 replies of lesson aa, which was forgotten before"]
