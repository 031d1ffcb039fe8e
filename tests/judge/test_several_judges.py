"""Two judges on one home: each turn is read by one of them, and those of a judge that was killed by the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from tests.judge.world import World
from tests.store.deaths import DEATH, die, run_in_process

from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.judge.worker import JudgeQueue
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.workers.registry import WorkerEntry
from openclaw_rl.types import JudgeInput, TurnState, Verdict

COUNT = 40
WITHIN = 240.0  # seconds


class CountingJudge:
    """Says good of each turn, and counts how often it is asked about it.

    It answers once all of `together` have been asked something, so that each has work whatever the machine does.
    """

    name = "counting"

    def __init__(self, together: list[CountingJudge]) -> None:
        self.asked: Counter[str] = Counter()
        self._together = together
        together.append(self)

    async def judge(self, item: JudgeInput) -> Verdict:
        self.asked[item.turn] += 1
        await until(lambda: all(judge.asked for judge in self._together))
        return make_verdict(item, self.name, 1, "good")


class FatalJudge:
    """Ends its process when it is asked about the turn."""

    name = "fatal"

    async def judge(self, item: JudgeInput) -> Verdict:
        die()
        raise AssertionError


def make_turns(world: World) -> list[str]:
    names = [f"turn-{number}" for number in range(COUNT)]
    for name in names:
        world.close(name, "And now?")
    return names


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "the judges did not get there in time"
        await asyncio.sleep(0.01)


def are_judged(world: World, names: list[str]) -> bool:
    with world.store.read() as conn:
        found = turns.get_many(conn, names)
    return all(turn.state is TurnState.JUDGED for turn in found.values())


async def judge_together(world: World, names: list[str], *judges: CountingJudge) -> None:
    stop = asyncio.Event()
    entries = [WorkerEntry(world.store, f"judge-{number}") for number in range(len(judges))]
    queues = [
        JudgeQueue(world.config, world.store, judge, None, worker=entry.id)
        for judge, entry in zip(judges, entries, strict=True)
    ]
    running = [asyncio.create_task(queue.run(stop)) for queue in queues]
    try:
        await until(lambda: are_judged(world, names))
    finally:
        stop.set()
        await asyncio.gather(*running)
        for queue in queues:
            await queue.cancel_tasks()
            await queue.lessons.close()
        for entry in entries:
            entry.close()


def test_each_turn_is_read_by_one_judge(world: World) -> None:
    names = make_turns(world)
    judges: list[CountingJudge] = []
    for _ in range(3):
        CountingJudge(judges)
    asyncio.run(judge_together(world, names, *judges))
    asked = sum((judge.asked for judge in judges), Counter())
    assert asked == Counter(names)
    assert all(judge.asked for judge in judges), "the work was shared"
    with world.store.read() as conn:
        verdicts = turns.current_verdicts(conn, names)
    assert {verdict.score for verdict in verdicts.values()} == {1}


def test_the_turns_of_a_killed_judge_are_judged_by_the_other(world: World) -> None:
    names = make_turns(world)

    def judge_and_die() -> None:
        with Store.open(world.config.store_path) as store:
            entry = WorkerEntry(store, "judge")
            queue = JudgeQueue(world.config, store, FatalJudge(), None, worker=entry.id)
            asyncio.run(queue.run(asyncio.Event()))

    assert run_in_process(judge_and_die) == DEATH
    judge = CountingJudge([])
    asyncio.run(judge_together(world, names, judge))
    assert judge.asked == Counter(names)
    with world.store.read() as conn:
        found = turns.get_many(conn, names)
    assert not any(turn.untrainable for turn in found.values()), "one death sets no turn aside"
