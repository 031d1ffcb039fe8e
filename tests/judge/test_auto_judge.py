"""The judge of `judge.kind auto`: when it is the rules, what the head decides, what it keeps, and who teaches it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.judge.head_world import (
    BAD,
    FILES,
    LinkedStateEngine,
    labelled_set,
    make_judge,
    reacted,
)
from tests.judge.world import World

from openclaw_rl.errors import EngineError, EngineGone, JudgeNotReady
from openclaw_rl.judge import worker as judge_worker
from openclaw_rl.judge.head import auto, training
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.head.choice import describe_choice, rules_reason
from openclaw_rl.judge.head.rule_trust import MIN_VERDICTS, measure_rules
from openclaw_rl.judge.head.training import PreparedHead
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.worker import make_judge as make_configured_judge
from openclaw_rl.settings.load import STARTER, from_flat
from openclaw_rl.store import person_scores, turns
from openclaw_rl.store.db import Store


def run_judge(
    world: World,
    engine: LinkedStateEngine,
    body: Callable[[AutoJudge], Awaitable[Any]],
    **settings: Any,
) -> Any:
    config = from_flat({"home": world.config.home, **settings})

    async def go() -> Any:
        judge = make_judge(config, engine, Path(world.config.home) / auto.HEAD_FOLDER)
        judge.open(world.store)
        try:
            return await body(judge)
        finally:
            await judge.close()

    return asyncio.run(go())


# ------------------------------------------------------------------------------------------- which judge


@pytest.fixture
def real(tmp_path: Path) -> str:
    """A model that is not the starter by its folder."""
    return str(shutil.copytree(FILES.folder, tmp_path / "model"))


def test_the_starter_has_the_rules() -> None:
    config = from_flat({"model.path": STARTER})
    assert isinstance(make_configured_judge(config), RulesJudge)
    assert "starter" in str(rules_reason(config))
    assert describe_choice(config).startswith("rules, because the starter")


def test_a_model_whose_engine_reads_states_has_a_head(real: str) -> None:
    config = from_flat({"model.path": real})
    assert rules_reason(config) is None
    assert isinstance(make_configured_judge(config), AutoJudge)
    assert real in describe_choice(config)


def test_an_engine_without_states_has_the_rules_unless_a_small_model_reads(real: str) -> None:
    remote = {"model.path": real, "engine.backend": "vllm"}
    assert "judge.path" in str(rules_reason(from_flat(remote)))
    own = from_flat(remote | {"judge.kind": "auto", "judge.path": real})
    assert rules_reason(own) is None
    states = make_configured_judge(own)
    assert isinstance(states, AutoJudge)


# --------------------------------------------------------------------------------------------- verdicts


def test_the_head_understands_what_no_rule_matches(world: World) -> None:
    async def body(judge: AutoJudge) -> None:
        await judge.prepared_head()
        assert (await judge.rules.judge(reacted("t", "far off, cheese"))).score is None
        bad = await judge.judge(reacted("t", "far off, cheese"))
        assert bad.score == -1
        assert bad.judge.startswith("head@")
        assert 'nearest examples: "far off' in bad.reason
        assert (await judge.judge(reacted("u", "spot on, cheese"))).score == 1
        unsure = await judge.judge(reacted("v", "what about Rome, cheese"))
        assert unsure.score is None
        assert "scores" in judge.status_note

    run_judge(world, LinkedStateEngine(), body)


def test_rules_decide_where_they_are_proven(world: World, tmp_path: Path) -> None:
    """A rule that is right on a whole class of the labelled set decides; its hint is given in any case."""
    words = "|".join(BAD)
    file = tmp_path / "rules.yaml"
    file.write_text(
        f"version: 1\nrules:\n  - {{name: bad, when: '{words}', score: -1, hint: Be careful.}}\n"
    )

    async def body(judge: AutoJudge) -> None:
        verdict = await judge.judge(reacted("t", "sloppy, cheese"))
        assert verdict.judge.startswith("rules@")
        assert verdict.hints == ("Be careful.",)

    run_judge(world, LinkedStateEngine(), body, **{"judge.rules_path": str(file)})


@pytest.mark.parametrize(("score", "decides"), [(-1, True), (1, False)])
def test_rules_that_are_often_wrong_are_not_trusted(
    tmp_path: Path, score: int, decides: bool
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        f"version: 1\nrules:\n  - {{name: n, when: 'sloppy|useless', score: {score}}}\n"
    )
    rules = RulesJudge.load(file)
    reactions = labelled_set().reactions
    verdicts = [asyncio.run(rules.judge(one.item)) for one in reactions]
    assert sum(verdict.score == score for verdict in verdicts) >= MIN_VERDICTS
    trust = measure_rules(reactions, verdicts)
    item = reacted("t", "sloppy")
    assert trust.covers(item, asyncio.run(rules.judge(item))) is decides


def test_a_higher_precision_gives_fewer_scores(world: World) -> None:
    """`judge.min_precision`: a threshold of its own, under a name of its own."""

    def threshold(precision: float) -> tuple[str, float]:
        async def body(judge: AutoJudge) -> tuple[str, float]:
            prepared = await judge.prepared_head()
            return prepared.name, prepared.head.threshold

        result: tuple[str, float] = run_judge(
            world, LinkedStateEngine(), body, **{"judge.min_precision": precision}
        )
        return result

    low = threshold(0.5)
    high = threshold(1.0)
    assert low[0] != high[0]
    assert low[1] < high[1]


def test_a_head_that_does_not_beat_the_rules_is_not_used(world: World, tmp_path: Path) -> None:
    """Rules that score a word of each bad reaction; the head sees labels by chance."""
    config = from_flat({"home": world.config.home})
    labelled = labelled_set()
    rows = [one for one in labelled.reactions if one.expected is None]

    async def go() -> None:
        nothing = type(labelled)(name="none@1", reactions=rows)
        judge = make_judge(config, LinkedStateEngine(), tmp_path / "heads", nothing)
        judge.open(world.store)
        try:
            await judge.prepared_head()
            verdict = await judge.judge(reacted("t", "far off, cheese"))
            assert verdict.judge.startswith("rules@")
            assert "does not beat" in judge.status_note
        finally:
            await judge.close()

    asyncio.run(go())


# ------------------------------------------------------------------------------------------- what is kept


def test_a_second_start_reads_nothing(world: World) -> None:
    async def name(judge: AutoJudge) -> str:
        return (await judge.prepared_head()).name

    first = LinkedStateEngine()
    before = run_judge(world, first, name)
    assert len(first.read) > len(labelled_set().reactions)
    second = LinkedStateEngine()
    assert run_judge(world, second, name) == before
    assert second.read == []


def test_a_damaged_head_is_fitted_again_from_the_states_that_were_read(world: World) -> None:
    async def body(judge: AutoJudge) -> None:
        await judge.prepared_head()

    run_judge(world, LinkedStateEngine(), body)
    (file,) = (Path(world.config.home) / auto.HEAD_FOLDER).glob("head-*.npz")
    file.write_bytes(file.read_bytes()[:100])
    again = LinkedStateEngine()
    run_judge(world, again, body)
    assert again.read == []


def test_an_engine_that_dies_loses_few_states_and_the_next_turn_tries_again(world: World) -> None:
    class DiesOnce(LinkedStateEngine):
        has_died = False

        async def read_states(self, request: Any) -> Any:
            if len(self.read) == 40 and not self.has_died:
                self.has_died = True
                raise EngineGone("the engine's process ended")
            return await super().read_states(request)

    engine = DiesOnce()

    async def body(judge: AutoJudge) -> None:
        assert judge._prepared is not None
        await asyncio.wait([judge._prepared])
        assert "cannot be fitted" in judge.status_note
        with pytest.raises(EngineGone):
            await judge.judge(reacted("t", "far off, cheese"))
        await judge.prepared_head()
        assert (await judge.judge(reacted("t", "far off, cheese"))).score == -1

    run_judge(world, engine, body)
    whole = LinkedStateEngine()
    shutil.rmtree(Path(world.config.home) / auto.HEAD_FOLDER)
    run_judge(world, whole, lambda judge: judge.prepared_head())
    assert len(engine.read) == len(whole.read) + 1, "of the rows, nothing was read twice"


def test_a_context_that_is_too_short_is_an_error(world: World) -> None:
    async def body(judge: AutoJudge) -> None:
        with pytest.raises(EngineError, match=r"engine\.max_context"):
            await judge.prepared_head()

    run_judge(world, LinkedStateEngine(context_length=512), body)


# -------------------------------------------------------------------------------------- while it prepares


class PausedStateEngine(LinkedStateEngine):
    """Reads nothing of the labelled reactions after the first `rows`, until `go` is set."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.go = asyncio.Event()

    async def read_states(self, request: Any) -> Any:
        states = await super().read_states(request)
        if len(self.read) == self._rows:
            self.paused = True
            await self.go.wait()
        return states


@pytest.fixture
def early_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of the first head, of about a hundred."""
    monkeypatch.setattr(training, "EARLY_ROWS", (80,))
    return 80


def test_before_the_first_head_a_turn_without_an_opinion_of_the_rules_is_postponed(
    world: World,
) -> None:
    engine = PausedStateEngine(10)

    async def body(judge: AutoJudge) -> None:
        with pytest.raises(JudgeNotReady):
            await judge.judge(reacted("t", "far off, cheese"))
        by_rules = await judge.judge(reacted("u", "Thank you, perfect!"))
        assert by_rules.judge.startswith("rules@")
        assert not judge.is_ready
        engine.go.set()
        await judge.prepared_head()
        assert (await judge.judge(reacted("t", "far off, cheese"))).score == -1

    run_judge(world, engine, body)


def test_a_first_head_judges_what_it_is_sure_of_while_the_rest_is_read(
    world: World, early_rows: int
) -> None:
    engine = LinkedStateEngine()

    async def body(judge: AutoJudge) -> None:
        early: list[PreparedHead] = []
        take_early = judge._take_early

        def take(head: PreparedHead) -> None:
            take_early(head)
            early.append(head)

        judge._take_early = take  # type: ignore[method-assign]
        await judge.prepared_head()
        (first,) = early
        assert first.name.endswith(f"/{early_rows}")
        assert first.report.rows < early_rows
        # As if the rest were still being read.
        judge._prepared = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        verdict = await judge.judge(reacted("t", "far off, cheese"))
        assert (verdict.score, verdict.judge) == (-1, first.name)
        assert "a first head judges" in judge.status_note
        # One that is sure of nothing.
        judge._take_early(replace(first, head=replace(first.head, threshold=1.1)))
        with pytest.raises(JudgeNotReady):
            await judge.judge(reacted("t", "far off, cheese"))

    run_judge(world, engine, body)


def test_the_worker_judges_others_while_a_turn_waits_for_the_head(world: World) -> None:
    """More turns wait than there are workers."""
    engine = PausedStateEngine(10)
    config = from_flat({"home": world.config.home, "judge.workers": 2, "judge.poll": 0.01})
    waiting = [f"waits{number}" for number in range(3)]
    for turn in waiting:
        world.close(turn, "far off, cheese")
    world.close("ruled", "Thank you, perfect!")

    async def go() -> None:
        judge = make_judge(config, engine, Path(world.config.home) / auto.HEAD_FOLDER)
        stop = asyncio.Event()
        task = asyncio.create_task(judge_worker.run(config, stop=stop, judge=judge))

        async def until_judged(*ids: str) -> None:
            while any(world.verdict(id) is None for id in ids):
                assert not task.done()
                await asyncio.sleep(0.01)

        await until_judged("ruled")
        assert [world.verdict(id) for id in waiting] == [None] * len(waiting)
        engine.go.set()
        await until_judged(*waiting)
        stop.set()
        await task

    asyncio.run(asyncio.wait_for(go(), 300))


# --------------------------------------------------------------------------------------------- its person


def score_turns(world: World, store: Store) -> None:
    """A person for whom "hm" is a complaint and "fine." is praise, in words that the labelled set does not have."""
    for number in range(20):
        world.close(f"hm{number}", "hm")
        world.give(f"hm{number}", score=-1)
        world.close(f"fine{number}", "fine.")
        world.give(f"fine{number}", score=1)


async def wait_for_people(judge: AutoJudge) -> None:
    await judge.prepared_head()
    assert judge._people is not None
    await judge._people.refresh()


def test_the_scores_of_a_person_are_learned_and_bend_nobody_else(world: World) -> None:
    score_turns(world, world.store)
    world.close("next", "hm")

    async def body(judge: AutoJudge) -> tuple[Any, Any, Any]:
        others = await judge.classify(reacted("of nobody", "hm"))
        await wait_for_people(judge)
        own = await judge.classify(reacted("next", "hm"))
        again = await judge.classify(reacted("of nobody", "hm"))
        return others, own, again

    others, own, again = run_judge(world, LinkedStateEngine(), body)
    good, bad, neither = own.probabilities
    assert bad > max(good, neither)
    assert bad > others.probabilities[1]
    assert "hm" in own.nearest
    assert again == others
    assert "hm" not in others.nearest


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ([{"score": 1}], 1),
        ([{"score": 1}, {"score": -1}], -1),
        ([{"correction": "Use metres."}], -1),
        ([{"score": 1}, {"correction": "Use metres."}], 1),
        ([{"score": 0}], "nothing"),
        ([{"comment": "hm"}], "nothing"),
    ],
)
def test_feedback_is_a_label(world: World, given: list[dict[str, Any]], label: object) -> None:
    world.close("t", "hm")
    for one in given:
        world.give("t", **one)
    with world.store.read() as conn:
        by_person = person_scores.scores_by_person(conn, 10)
    labels = [one.score for scores in by_person.values() for one in scores]
    assert labels == ([] if label == "nothing" else [label])


def test_an_undone_turn_is_no_evidence(world: World) -> None:
    from openclaw_rl.store.lessons import removal

    world.close("t", "hm")
    with world.store.write(durable=False) as conn:
        removal.take_back(conn, ["t"], "undone", at=5.0)
    with world.store.read() as conn:
        by_person = person_scores.scores_by_person(conn, 10)
        assert turns.get(conn, "t") is not None
    assert [one.score for scores in by_person.values() for one in scores] == [None]
