"""What people learn does not depend on others who contradict, praise everything, flood or change sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.train.conftest import IDENTITY
from tests.train.people_world import (
    KINDS,
    CreditTrainer,
    Home,
    Judged,
    Opinions,
    differences,
    live,
    people_of,
)

from openclaw_rl.judge.lessons.lesson_maker import LessonMaker
from openclaw_rl.judge.verdict_writer import VerdictWriter
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import from_flat, train_settings
from openclaw_rl.status.trust import trust_lines
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.store.trust.judge_trust import read_trust
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.testing import ScriptedJudge
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

OpenHome = Callable[..., Home]
# How an attacker of each kind may be named.
CODES = {
    "contradicts": {ReasonCode.CONTRADICTS_JUDGE},
    "praises": {ReasonCode.ONE_SIDED, ReasonCode.CHANGES_SIDES},
    "floods": {ReasonCode.FLOODS, ReasonCode.CONTRADICTS_JUDGE},
    "switches": {ReasonCode.CHANGES_SIDES},
}


@pytest.fixture
def open_home(tmp_path: Path, builder: SampleBuilder, judged: Judged) -> Iterator[OpenHome]:
    opened: list[Home] = []

    def make(batch: int = 100) -> Home:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        store = Store.open(folder / "store.db")
        with store.write() as conn:
            policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
        config = from_flat({"home": str(folder)})
        lessons = LessonMaker(config, store, ScriptedJudge(lambda item: 1))
        writer = VerdictWriter(store, AttemptLog(store, "judge"), lessons, config.judge.min_kappa)
        train = train_settings({"method": "binary", "batch_min": batch, "batch_max": batch})
        trainer = CreditTrainer()
        loop = TrainLoop(store, trainer, builder, train, folder / "policies", LoopParts())
        opened.append(Home(store, loop, trainer, writer, judged))
        return opened[-1]

    yield make
    for home in opened:
        home.loop.close()
        home.store.close()


def check_attack(open_home: OpenHome, honest: int, attackers: int) -> None:
    """Compare what honest people learn with and without attackers, and with the same turns in another order."""
    people = people_of(honest, attackers)
    batch = 2 * honest
    alone = live(open_home(batch), people[:honest], order=1)
    reordered = live(open_home(batch), people[:honest], order=2)
    attacked = live(open_home(batch), people, order=1)

    noise = differences(alone.advantages(), reordered.advantages())
    change = differences(alone.advantages(), attacked.advantages())
    assert np.abs(change).mean() <= 1.25 * np.abs(noise).mean()
    assert abs(change.mean()) <= 0.05, "no drift either: an advantage is at most 2"

    with alone.store.read() as before, attacked.store.read() as after:
        trust_alone = read_trust(before)
        trust_attacked = read_trust(after)
    assert trust_attacked.common == frozenset()
    for key in people[:honest]:
        trusts = trust_attacked.is_trusted("test", (key, ""))
        assert trusts == trust_alone.is_trusted("test", (key, ""))
    for home in (alone, attacked):
        waiting = home.waiting()
        for turn, name in home.names.items():
            key = name.partition(" ")[0]
            if key in people[:honest] and trust_attacked.is_trusted("test", (key, "")):
                assert (turn in home.trainer.advantages) != (turn in waiting), "nothing is lost"

    named: dict[str, set[str]] = {}
    for row in attacked.status()["set_aside"]:
        named.setdefault(row["key"], set()).add(row["code"])
        assert 0 < row["part"] <= row["of"]
        assert row["reason"]
    assert set(named) == set(people[honest:])
    text = "\n".join(line.plain for line in trust_lines(attacked.status()))
    assert all(f"key {key}: " in text for key in named)
    for key, codes in named.items():
        assert codes <= CODES[key.partition("-")[0]]
    assert alone.status()["set_aside"] == []


def test_eight_attackers_change_nothing_for_twenty_people(open_home: OpenHome) -> None:
    check_attack(open_home, honest=20, attackers=2 * len(KINDS))


@pytest.mark.system
def test_thirty_attackers_change_nothing_for_seventy_people(open_home: OpenHome) -> None:
    check_attack(open_home, honest=70, attackers=30)


def say(home: Home, key: str, scores: list[tuple[int, int | None]]) -> list[str]:
    """A person has turns, with these scores by the judge and by the person."""
    before = set(home.names)
    asked = [(f"{key} {n}", Opinions(key, *pair)) for n, pair in enumerate(scores)]
    home.have_turns(asked)
    return [turn for turn in home.names if turn not in before]


def test_twenty_four_thumbs_of_one_key_end_no_learning_for_others(open_home: OpenHome) -> None:
    home = open_home()
    others = say(home, "ann", [(1, None), (-1, None)] * 3) + say(home, "bob", [(1, None)] * 3)
    own = say(home, "mallory", [(-1 if n % 2 else 1, None) for n in range(4)])
    scored = say(home, "mallory", [(1, -1), (-1, 1)] * 12)
    with home.store.read() as conn:
        trust = read_trust(conn)
    assert trust.common == frozenset()
    assert not trust.is_trusted("test", ("mallory", ""))
    assert trust.is_trusted("test", ("ann", ""))
    assert trust.named == ["test for 1 person"]
    waiting = home.waiting()
    assert set(others) <= waiting
    assert set(scored) <= waiting, "what the person said is trained on"
    assert not set(own) & waiting
    status = home.status()
    (judge,) = [row for row in status["judges"] if row["judge"] == "test"]
    assert (judge["trained_on"], judge["people_without"]) == (True, 1)


def test_a_judge_that_several_keys_contradict_is_not_trusted_for_newcomers(
    open_home: OpenHome,
) -> None:
    home = open_home()
    newcomer = say(home, "newcomer", [(1, None)])
    for key in ("ann", "bob", "eve"):
        say(home, key, [(1, -1), (-1, 1)] * 12)
    assert not set(newcomer) & home.waiting()
    loyal = say(home, "loyal", [(1, 1), (-1, -1)] * 12 + [(1, None)])
    assert loyal[-1] in home.waiting(), "by the own scores of this person, the judge is right"
    assert home.status()["set_aside"] == [], "the judge is wrong, and not the people"


def test_turns_of_a_flood_are_trained_on_after_those_of_others(open_home: OpenHome) -> None:
    home = open_home(batch=400)
    flood = say(home, "flood", [(1, None)] * 130)
    others = [turn for key in ("ann", "bob") for turn in say(home, key, [(1, None)] * 3)]
    say(home, "eve", [(1, 1)])
    with home.store.read() as conn:
        ids = training_queue.trainable_ids(
            conn, limit=20, max_uses=1, need_score=True, need_hint=False
        )
        held_out = training_queue.held_out_turns(conn, version=0, limit=9)
    assert ids[:6] == others
    assert set(ids[7:]) <= set(flood)
    assert {item.exchange.request.scope for item in held_out} == {"ann", "bob", "eve"}


def test_each_person_has_a_share_of_the_held_out_turns(open_home: OpenHome) -> None:
    home = open_home(batch=400)
    for key in ("ann", "bob", "eve"):
        say(home, key, [(1, None)] * 2)
    say(home, "busy", [(-1, None)] * 40)
    with home.store.read() as conn:
        items = training_queue.held_out_turns(conn, version=0, limit=8)
    scopes = [item.exchange.request.scope for item in items]
    assert sorted(scopes) == sorted(["ann", "bob", "eve", "busy"] * 2)


def test_users_of_a_key_share_what_the_key_has(open_home: OpenHome) -> None:
    home = open_home(batch=400)
    turns = [{"scope": key} for key in ("ann", "bob")] * 4
    turns += [{"scope": "app", "user": f"user {n}"} for n in range(30)]
    for request in turns:
        home.have_turns([(str(len(home.names)), Opinions(request["scope"], 1, None))], **request)
    with home.store.read() as conn:
        items = training_queue.held_out_turns(conn, version=0, limit=9)
    scopes = [item.exchange.request.scope for item in items]
    assert sorted(scopes) == sorted(["ann", "bob", "app"] * 3)
