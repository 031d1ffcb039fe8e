"""A judge is compared with people's explicit scores; one that does not agree with them is not trained on."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection
from tests.judge.test_worker import _short_waits, note, until, working  # noqa: F401  the fixture applies here too
from tests.judge.world import IDENTITY, World

from openclaw_rl.cli.main import cli
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.comparison import ComparisonQueue
from openclaw_rl.settings.load import from_flat
from openclaw_rl.status import diagnose
from openclaw_rl.status.report import collect_status
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import policies, training_queue, version_stats
from openclaw_rl.store.trust import judge_trust
from openclaw_rl.testing import ScriptedJudge
from openclaw_rl.types import Feedback, JudgeInput, Reaction, TurnState


def scored_input(world: World, turn: str, key: str) -> JudgeInput:
    """A turn of a key, with a message and an explicit score."""
    world.served(turn, scope=key)
    feedback = Feedback(id=turn, scope=key, target=turn, score=1, given_at=1.0)
    said = ({"role": "user", "content": "fine"},)
    reaction = Reaction(
        turn=turn,
        revision=1,
        messages=said,
        feedback=(feedback,),
        source=None,
        how="exact",
        at=1.0,
    )
    return JudgeInput(turn=turn, messages=(), reply={"role": "assistant"}, reaction=reaction)


Opinion = Callable[[JudgeInput], Any]


def score_turns(world: World, scores: Mapping[str, int], *, corrected: bool = False) -> None:
    """People react to turns in words, and score them outright."""
    for id, score in scores.items():
        world.close(id, f"a reaction to {id}")
        world.give(id, score=score, **({"correction": "Be brief."} if corrected else {}))


def alternating(count: int, prefix: str = "x") -> dict[str, int]:
    return {f"{prefix}{n:03}": 1 if n % 2 else -1 for n in range(count)}


def read(world: World, look: Callable[[Connection], Any]) -> Any:
    with world.store.read() as conn:
        return look(conn)


def pairs(world: World) -> list[tuple[int, int]]:
    found: dict[str, list[tuple[int, int]]] = read(world, version_stats.judge_user_pairs)
    return found.get("scripted", [])


def trainable(world: World, *, need_hint: bool = False) -> dict[str, int | None]:
    """Turn -> score that it would be trained with."""
    found = read(
        world,
        lambda conn: training_queue.trainable_turns(
            conn, limit=999, max_uses=1, need_score=True, need_hint=need_hint
        ),
    )
    return {item.turn.id: item.verdict.score for item in found}


def judge_all(world: World, opinion: Opinion, expected: int) -> ScriptedJudge:
    """Run the worker until all turns are judged and `expected` pairs are stored."""
    judge = ScriptedJudge(opinion)

    async def go() -> None:
        async with working(world, judge):
            await until(lambda: len(pairs(world)) >= expected and not world.waiting())

    asyncio.run(go())
    return judge


@pytest.fixture
def world(world: World) -> World:
    with world.store.write() as conn:
        policies.ensure_root(conn, base="b", identity=IDENTITY, at=0.0)
    return world


def person_agrees(scores: Mapping[str, int], wrong: int = 0) -> Opinion:
    """A judge that gives the person's score, except on the first `wrong` turns, and +1 elsewhere."""
    reversed_turns = set(list(scores)[:wrong])
    return lambda item: (
        -scores[item.turn] if item.turn in reversed_turns else scores.get(item.turn, 1)
    )


def test_the_judge_scores_a_turn_with_explicit_feedback_from_the_reaction_alone(
    world: World,
) -> None:
    score_turns(world, {"a": -1}, corrected=True)
    judge = judge_all(world, lambda item: 1, 1)
    (seen,) = judge.seen
    assert [m["content"] for m in seen.reaction.messages] == ["a reaction to a"]
    assert seen.reaction.feedback == ()
    assert pairs(world) == [(1, -1)]
    verdict = world.verdict("a")
    assert verdict is not None
    assert (verdict.explicit, verdict.score, verdict.hints) == (True, -1, ("Be brief.",))
    assert trainable(world) == {"a": -1}


def test_a_turn_is_compared_once_and_only_where_there_is_something_to_compare(world: World) -> None:
    world.close("judged before", "ok")
    world.served("feedback alone")
    world.give("feedback alone", score=1)
    score_turns(world, {"scored": 1})
    world.close("comment", "ok")
    world.give("comment", comment="fine")

    async def go() -> None:
        judge = ScriptedJudge(lambda item: 1)
        async with working(world, judge):
            await until(lambda: not world.waiting() and len(pairs(world)) == 1)
            world.give("judged before", score=-1)  # its pair has the verdict from before
            await until(lambda: len(pairs(world)) == 2)
            world.close("scored", "ok", "and more")
            await until(lambda: world.state("scored") is TurnState.JUDGED)
            await asyncio.sleep(0.1)
        assert sorted(item.turn for item in judge.seen) == ["comment", "judged before", "scored"]

    asyncio.run(go())


def test_a_judge_that_fails_leaves_the_explicit_verdict_and_is_not_asked_again(
    world: World,
) -> None:
    score_turns(world, {"a": 1})
    tried: list[str] = []

    def fail(item: JudgeInput) -> JudgeError:
        tried.append(item.turn)
        return JudgeError("down")

    async def go() -> None:
        async with working(world, ScriptedJudge(fail)):
            await until(lambda: bool(tried))
            await asyncio.sleep(0.1)

    asyncio.run(go())
    assert tried == ["a"]
    assert trainable(world) == {"a": 1}


@pytest.mark.parametrize("seed", range(2))
def test_a_random_judge_is_not_trained_on_after_at_most_40_explicit_scores(
    world: World, seed: int
) -> None:
    chance = random.Random(seed)
    for n in range(6):
        world.close(f"unscored{n}", "something")
    score_turns(world, alternating(40))
    judge_all(world, lambda item: chance.choice((1, -1)), 40)
    assert trainable(world) == alternating(40), "explicit scores still train, and nothing else does"


def test_training_on_a_random_judge_stops_while_the_scores_arrive(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("openclaw_rl"), "propagate", True)
    chance = random.Random(7)
    world.close("unscored", "something")
    stopped_at: list[int] = []

    async def go() -> None:
        async with working(world, ScriptedJudge(lambda item: chance.choice((1, -1)))):
            await until(lambda: "unscored" in trainable(world))
            for n, (turn, score) in enumerate(alternating(40).items(), 1):
                score_turns(world, {turn: score})
                await until(lambda n=n: len(pairs(world)) == n)  # type: ignore[misc]
                if "unscored" not in trainable(world):
                    stopped_at.append(n)

    asyncio.run(go())
    assert judge_trust.MIN_PAIRS <= stopped_at[0] <= 40
    assert "its verdicts are no longer trained on" in caplog.text
    assert "not trained on (judge.min_kappa): scripted" in note(world)
    shown = CliRunner().invoke(cli, ["status", "--home", world.config.home]).output
    assert re.search(
        r"scripted: kappa -?0\.\d\d \(-0\.\d\d to 0\.\d\d\) over 40 scored turns", shown
    )
    assert "verdicts of scripted are not trained on (judge.min_kappa)" in shown
    assert "the judge is not trusted" in shown
    status = read(world, lambda conn: collect_status(conn, 10.0))
    (row,) = status["judges"]
    assert (row["judge"], row["trained_on"], row["pairs"]) == ("scripted", False, 40)
    assert row["low"] < 0 < row["high"]
    diagnoses = read(world, lambda conn: diagnose.find_diagnoses(world.config, conn, 10.0))
    (found,) = [one for one in diagnoses if one.name == "the judge is not trusted"]
    assert "over 40 turns" in found.evidence
    assert found.settings["judge.kind"] == "llm"


def test_a_judge_that_agrees_with_people_stays_trusted(world: World) -> None:
    scores = alternating(40)
    world.close("unscored", "something")
    score_turns(world, scores)
    judge_all(world, person_agrees(scores, wrong=5), 40)
    assert trainable(world) == scores | {"unscored": 1}
    (row,) = read(world, lambda conn: collect_status(conn, 10.0))["judges"]
    assert row["trained_on"]
    assert (row["value"], row["pairs"]) == (pytest.approx(0.75, abs=0.01), 40)


def test_one_sided_or_few_scores_decide_nothing(world: World) -> None:
    world.close("unscored", "something")
    score_turns(world, alternating(judge_trust.MIN_PAIRS - 1))
    judge_all(world, lambda item: 1, judge_trust.MIN_PAIRS - 1)
    assert "unscored" in trainable(world)
    one_sided = [(1, 1)] * 30 + [(1, -1)] * (judge_trust.MIN_PAIRS_EACH - 1)
    assert not judge_trust.is_below_kappa(one_sided, 0.0)
    assert judge_trust.is_below_kappa([*one_sided, (1, -1)], 0.0), (
        "a judge that always says +1 tells nothing"
    )


def test_a_verdict_of_0_is_no_evidence(world: World) -> None:
    scores = alternating(40)
    world.close("unscored", "something")
    score_turns(world, scores)
    judge_all(
        world, lambda item: 0 if item.turn in list(scores)[::4] else scores.get(item.turn, 1), 40
    )
    assert "unscored" in trainable(world)
    (row,) = read(world, lambda conn: collect_status(conn, 10.0))["judges"]
    assert (row["value"], row["pairs"]) == (1, 30)


def test_a_persons_correction_still_trains_and_the_judges_score_does_not(world: World) -> None:
    world.close("corrected", "hm")
    world.give("corrected", correction="Use tables.")
    world.close("plain", "hm")
    score_turns(world, alternating(40))
    judge_all(world, lambda item: (1, "Keep it short."), 40)
    assert trainable(world, need_hint=True) == alternating(40) | {"corrected": None}
    assert trainable(world) == alternating(40)


def test_another_judge_is_trusted_until_it_is_measured(world: World) -> None:
    world.close("old", "something")
    score_turns(world, alternating(40))
    judge_all(world, lambda item: 1, 40)
    assert "old" not in trainable(world)

    class Better(ScriptedJudge):
        name = "better"

    async def go() -> None:
        world.close("new", "something")
        async with working(world, Better(lambda item: -1)):
            await until(lambda: not world.waiting())

    asyncio.run(go())
    assert trainable(world) == alternating(40) | {"new": -1}


@pytest.mark.parametrize(
    ("settings", "compared", "is_trained_on"),
    [({}, 40, False), ({"judge.min_kappa": -1}, 40, True), ({"judge.max_comparisons": 0}, 0, True)],
)
def test_a_setting_changes_what_is_compared_and_trained_on(
    world: World, settings: dict[str, Any], compared: int, is_trained_on: bool
) -> None:
    world.config = from_flat({"home": world.config.home, "judge.poll": 0.01} | settings)
    world.close("unscored", "something")
    score_turns(world, alternating(40))
    judge_all(world, lambda item: 1, compared)
    assert len(pairs(world)) == compared
    assert ("unscored" in trainable(world)) is is_trained_on


def test_the_minimum_kappa_is_read_again_at_the_start(world: World) -> None:
    world.close("unscored", "something")
    score_turns(world, alternating(40))
    judge_all(world, lambda item: 1, 40)
    assert "unscored" not in trainable(world)
    world.config = from_flat({"home": world.config.home, "judge.poll": 0.01, "judge.min_kappa": -1})

    async def go() -> None:
        async with working(world, ScriptedJudge(lambda item: 1)):
            await until(lambda: "unscored" in trainable(world))

    asyncio.run(go())


def test_comparisons_are_limited(world: World) -> None:
    world.config = from_flat(
        {"home": world.config.home, "judge.poll": 0.01, "judge.max_comparisons": 7}
    )
    score_turns(world, alternating(20))
    judge = judge_all(world, lambda item: 1, 7)
    assert len(judge.seen) == len(pairs(world)) == 7


def test_a_correction_is_a_lesson_also_beside_a_verdict_that_is_not_trusted(world: World) -> None:
    score_turns(world, alternating(40))
    judge_all(world, lambda item: 1, 40)
    world.close("corrected", "hm")
    world.give("corrected", correction="It is Canberra.")
    world.close("other", "hm")
    judge_all(world, lambda item: (-1, "Use a formal tone."), 40)
    verdict = world.verdict("corrected")
    assert verdict is not None
    assert (verdict.judge, verdict.hints) == ("scripted", ("It is Canberra.",))
    assert [lesson.text for lesson in read(world, lessons.list_lessons)] == ["It is Canberra."]


def test_one_person_does_not_use_up_the_comparisons_of_others(world: World) -> None:
    config = from_flat({"judge.max_comparisons": 8})
    seen: list[str] = []

    def judge(item: JudgeInput) -> int:
        seen.append(item.turn)
        return 1

    async def go() -> None:
        topics = load_topics(config.judge.rules_path)
        queue = ComparisonQueue(world.store, ScriptedJudge(judge), config.judge, topics)
        for key, count in (("loud", 40), ("ann", 2), ("bob", 1)):
            queue.add([scored_input(world, f"{key}-{n}", key) for n in range(count)])
        for _ in range(20):
            await queue.start(4)
            await asyncio.gather(*queue.tasks)
            queue.take_finished()

    asyncio.run(go())
    assert sorted(seen) == ["ann-0", "ann-1", "bob-0", "loud-0", "loud-1"]
