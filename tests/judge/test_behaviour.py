"""Signals from behaviour, from captured conversations through collector, judge and store to the training queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.collect.recorded_exchange import conversation, title
from tests.collect.world import Ask, Say, Step, Stored, Wait, calls, result
from tests.judge.test_comparison import judge_all, read, score_turns, trainable
from tests.judge.test_worker import _short_waits  # noqa: F401  the fixture applies here too
from tests.judge.world import IDENTITY, World

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge import worker
from openclaw_rl.judge.behaviour.signals import repeated
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.status import diagnose
from openclaw_rl.status.report import collect_status
from openclaw_rl.store import reactions, turns
from openclaw_rl.store.lineage import policies, version_stats
from openclaw_rl.testing import ScriptedJudge
from openclaw_rl.types import JudgeInput, Reaction, TurnState, Verdict

WITHIN = 240.0  # seconds
ALL = ("regenerated", "edited", "repeated", "abandoned", "copied", "tool_error", "exit_code")
OFF = {f"judge.signals.{name}": 0.0 for name in ALL}
NO_EVIDENCE = ScriptedJudge(lambda item: None)

TRIP = "Plan a trip to Rome for my family."
PLAN = "Day 1: the Forum and the Colosseum, with a guide at ten.\nDay 2: the Vatican museums, early, before the queue."
START = Ask(
    name="hello",
    history=["u Good morning, are you there?"],
    reply="Good morning! What can I do for you?",
)
OPEN = [*START.history, f"a {START.reply}"]
PLANNED = Ask(name="plan", history=[*OPEN, f"u {TRIP}"], reply=PLAN)
MAIL = Ask(name="mail", history=[f"u Put this into a mail to Ann: {PLAN}"], reply="Dear Ann ...")
SAVE = [f"a {PLAN}", "u Save it as trip.md, will you?"]
WRITE = calls(("call_2", "write", json.dumps({"path": "trip.md", "text": PLAN})))
SHELL = calls(("call_1", "shell", '{"command": "make"}'))


def then(
    name: str,
    *more: Any,
    reply: str = "Very well, here it is.",
    after: Sequence[Any] = PLANNED.history,
) -> Ask:
    return Ask(name=name, history=[*after, *more], reply=reply)


def tool_turn(output: str, **flags: Any) -> list[Step]:
    """The agent runs a command, and gets its output."""
    asked = Ask(name="plan", history=[*OPEN, "u Build the project, please."], reply=SHELL)
    return [
        START,
        asked,
        then("next", SHELL, result("call_1", output) | flags, after=asked.history),
    ]


SCENES: dict[str, list[Step]] = {
    "regenerated": [START, PLANNED, then("another")],
    "edited": [
        START,
        PLANNED,
        then("another", "u Plan a trip to Rome for my family, with two children.", after=OPEN),
    ],
    "repeated": [START, PLANNED, then("another", f"a {PLAN}", f"u {TRIP.lower()}")],
    "abandoned": [START, PLANNED, Wait(seconds=500.0)],
    "copied": [
        START,
        PLANNED,
        MAIL,
    ],
    "copied to a file": [
        START,
        PLANNED,
        then("save", *SAVE, reply=WRITE),
        then("saved", *SAVE, WRITE, result("call_2", "ok")),
    ],
    "tool_error": tool_turn("the connection was closed", is_error=True),
    "exit_code": tool_turn("make: nothing to be done\nProcess exited with code 2\n"),
}
REASONS = {
    "regenerated": "regenerated: the person asked for another reply to the same message (weight 0.5)",
    "edited": "edited: the person changed the message and sent it again (weight 0.5)",
    "repeated": "repeated: the person's next message asks the same again (weight 0.5); scripted",
    "abandoned": "abandoned: nothing followed the reply (weight 0.5)",
    "copied": "copied: text of the reply stands in another conversation or a later tool call (weight 0.5)",
    "tool_error": "tool_error: 1 of 1 tool results are marked as errors (weight 0.5); scripted",
    "exit_code": "exit_code: a command ended with exit code 2 (weight 0.5); scripted",
}


class Home:
    """A store in which conversations are collected, and judged on request."""

    def __init__(self, path: Path, **settings: Any) -> None:
        given = {
            "home": str(path),
            "judge.poll": 0.01,
            "judge.signals.abandoned_after": 400,
        } | settings
        self.config: Config = from_flat(given)
        self.world = Stored(self.config.store_path, signals=self.config.judge.signals)

    def play(self, *steps: Step) -> Home:
        for step in steps:
            self.world.play(step)
        return self

    def judge(self, judge: Judge = NO_EVIDENCE, pairs: int = 0, only: str = "") -> Home:
        """Run the worker until all turns, or `only` this one, are judged and `pairs` comparisons are stored."""

        async def go() -> None:
            stop = asyncio.Event()
            task = asyncio.create_task(worker.run(self.config, stop=stop, judge=judge))
            async with asyncio.timeout(WITHIN):
                while self._is_waiting(only) or sum(map(len, self.pairs().values())) < pairs:
                    await asyncio.sleep(0.01)
            stop.set()
            await task

        asyncio.run(go())
        return self

    def _is_waiting(self, only: str) -> bool:
        with self.world.store.read() as conn:
            return (
                turns.current_verdict(conn, only) is None
                if only
                else turns.count_unjudged(conn)[0] > 0
            )

    def verdict(self, turn: str = "plan") -> Verdict | None:
        with self.world.store.read() as conn:
            return turns.current_verdict(conn, turn)

    def pairs(self) -> dict[str, list[tuple[int, int]]]:
        with self.world.store.read() as conn:
            return version_stats.judge_user_pairs(conn)


def score_of(home: Home, turn: str = "plan") -> tuple[str, int | None, float] | None:
    verdict = home.verdict(turn)
    return None if verdict is None else (verdict.judge, verdict.score, verdict.weight)


@pytest.mark.parametrize("scene", SCENES)
def test_a_signal_is_the_evidence_that_its_weight_states(scene: str, tmp_path: Path) -> None:
    signal = scene.partition(" ")[0]
    weight = 0.5 if signal in ("copied", "abandoned") else -0.5
    home = Home(tmp_path, **OFF | {f"judge.signals.{signal}": weight}).play(*SCENES[scene]).judge()
    assert score_of(home) == (f"behaviour:{signal}", 1 if weight > 0 else -1, 0.5)
    verdict = home.verdict()
    assert verdict is not None
    assert verdict.reason.startswith(REASONS[signal])
    if scene in ("regenerated", "copied"):
        shown = CliRunner().invoke(cli, ["inspect", "turn", "plan", "--home", str(tmp_path)]).output
        assert f"by behaviour:{signal} with weight 0.5" in shown
        assert all(word in shown for word in verdict.reason.split())


@pytest.mark.parametrize("scene", SCENES)
def test_a_signal_that_is_switched_off_changes_nothing(scene: str, tmp_path: Path) -> None:
    home = Home(tmp_path, **OFF).play(*SCENES[scene]).judge()
    assert score_of(home) in (None, ("scripted", None, 1.0))
    with home.world.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM observations").scalar_one() == 0


@pytest.mark.parametrize(
    ("asked", "again", "counts"),
    [
        ([TRIP], TRIP, True),
        (["Good morning!", TRIP], TRIP.upper(), True),
        (["Fix the bug.", "Continue with the next step."], "Continue with the next step.", False),
        (["Fix the bug.", TRIP, TRIP], TRIP.upper(), False),
    ],
)
def test_a_fixed_nudge_of_a_loop_is_no_repetition(
    asked: list[str], again: str, counts: bool
) -> None:
    """A loop's message returns letter by letter, and never begins the conversation."""
    messages = [{"role": "user", "content": text} for text in asked]
    reaction = Reaction(
        turn="1",
        revision=1,
        messages=({"role": "user", "content": again},),
        source="2",
        how="exact",
        at=0.0,
    )
    item = JudgeInput(
        turn="1",
        messages=messages,
        reply={"role": "assistant", "content": "Hm."},
        reaction=reaction,
    )
    assert (repeated(item) is not None) == counts


def test_conversations_count_as_abandoned_after_the_set_time(tmp_path: Path) -> None:
    on = OFF | {"judge.signals.abandoned": 0.3}
    home = (
        Home(tmp_path, **on, **{"judge.signals.abandoned_after": 100})
        .play(START, PLANNED, Wait(seconds=90.0))
        .judge()
    )
    assert home.world.state("plan")[0] is TurnState.SERVED
    home.play(Wait(seconds=20.0)).judge()
    assert score_of(home) == ("behaviour:abandoned", 1, 0.3)
    home.play(then("later", f"a {PLAN}", "u No, not by train.")).judge(
        ScriptedJudge(lambda item: -1)
    )
    assert score_of(home) == ("scripted", -1, 1.0), (
        "a late reaction in words counts before behaviour"
    )
    with pytest.raises(
        ConfigError, match=r"abandoned_after \(100\) is above collect\.session_timeout"
    ):
        from_flat(on | {"judge.signals.abandoned_after": 100, "collect.session_timeout": 50})


def test_the_recorded_day_has_one_regeneration(tmp_path: Path) -> None:
    """OpenClaw's own traffic: a retry after an error, a heartbeat, tool calls and a summary are no signals."""
    home = Home(tmp_path).play(*conversation("ann"), *title("ann")).judge()
    with home.world.store.read() as conn:
        found = conn.exec_driver_sql("SELECT turn, signal, source FROM observations").all()
    assert found == [("ann/prepare", "regenerated", "ann/prepare otherwise")]
    assert score_of(home, "ann/prepare") == ("behaviour:regenerated", -1, 0.5)


TRAIN = "Take the night train from Munich at eight in the evening.\nYou arrive in Rome at nine, after breakfast."
SECOND = then("second", f"a {PLAN}", "u And by train?", reply=TRAIN)
SAMPLED = [START, PLANNED, *(then(f"sample {n}") for n in range(5))]
HANDED_OVER = [
    START,
    PLANNED,
    SECOND,
    Ask(name="agent", history=[f"u So far: {PLAN} {TRAIN}"], reply="Go."),
]
QUOTED = "u Is this right? Day 2: the Vatican museums, early, before the queue."
QUICK = Ask(name="quick", history=PLANNED.history, reply="Another one, at once.")


@pytest.mark.parametrize(
    ("steps", "turn"),
    [
        ([START, replace(START, name="second hello")], "hello"),
        (
            [START, PLANNED, then("other", "u What is the French word for bread?", after=OPEN)],
            "plan",
        ),
        ([START, PLANNED, then("next", f"a {PLAN}", "u go on")], "plan"),
        (HANDED_OVER, "plan"),
        ([START, PLANNED, then("elsewhere", QUOTED, after=())], "plan"),
        ([START, PLANNED, then("next", f"a {PLAN}", "u Fine, and now?"), then("back")], "plan"),
        (SAMPLED, "sample 3"),
    ],
    ids=[
        "one_message_in_two_conversations",
        "another_question",
        "short_words",
        "hand-off",
        "short_quote",
        "continued",
        "sampled",
    ],
)
def test_behaviour_without_a_signal_gives_no_score(
    steps: list[Step], turn: str, tmp_path: Path
) -> None:
    verdict = Home(tmp_path).play(*steps).judge().verdict(turn)
    assert verdict is None or verdict.score is None


def test_a_program_that_asks_again_at_once_is_no_person(tmp_path: Path) -> None:
    home = Home(tmp_path).play(START, PLANNED)
    home.world.now -= 0.5
    home.play(QUICK).judge()
    assert home.verdict() is None


def test_text_outranks_behaviour_and_explicit_scores_outrank_both(tmp_path: Path) -> None:
    home = Home(tmp_path).play(*SCENES["regenerated"]).judge()
    assert score_of(home) == ("behaviour:regenerated", -1, 0.5)
    home.play(then("back", f"a {PLAN}", "u This one is better after all.")).judge(
        ScriptedJudge(lambda item: 1)
    )
    assert score_of(home) == ("scripted", 1, 1.0)
    home.play(Say(name="plan", score=-1)).judge(ScriptedJudge(lambda item: 1))
    assert score_of(home) == ("explicit", -1, 1.0)
    home.play(MAIL).judge()
    assert score_of(home) == ("explicit", -1, 1.0)


def test_behaviour_after_a_judge_that_found_no_evidence_is_a_new_verdict(tmp_path: Path) -> None:
    home = (
        Home(tmp_path)
        .play(START, PLANNED, then("next", f"a {PLAN}", "u And by train, if we could?"))
        .judge()
    )
    assert score_of(home) == ("scripted", None, 1.0)
    home.play(MAIL).judge()
    assert score_of(home) == ("behaviour:copied", 1, 0.2)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([START, PLANNED, then("another")], REASONS["regenerated"]),
        ([START, PLANNED, then("another"), MAIL], "abstained: the signals disagree: regenerated: "),
    ],
    ids=["one signal", "signals that disagree"],
)
def test_no_model_is_asked_about_a_reaction_without_text(
    steps: list[Step], reason: str, tmp_path: Path
) -> None:
    """They would have to invent it; the teacher's endpoint does not even exist."""
    teacher = {
        "teacher.model": "t",
        "teacher.base_url": "http://127.0.0.1:1/v1",
        "teacher.when": "always",
    }
    judge = ScriptedJudge(lambda item: 1)
    verdict = Home(tmp_path, **teacher).play(*steps).judge(judge, only="plan").verdict()
    assert verdict is not None
    assert verdict.reason.startswith(reason)
    assert "teacher" not in verdict.reason
    assert verdict.score == (-1 if reason == REASONS["regenerated"] else None)
    assert "plan" not in {item.turn for item in judge.seen}


def test_signals_are_compared_with_explicit_feedback(tmp_path: Path) -> None:
    """Before and after the score; a signal that did not occur is compared with the opposite of its score."""
    home = Home(
        tmp_path, **OFF | {"judge.signals.regenerated": -0.5, "judge.signals.tool_error": -0.2}
    )
    home.play(START, PLANNED, Say(name="plan", score=-1)).judge(pairs=1)
    assert home.pairs() == {"behaviour:regenerated": [(1, -1)]}
    home.play(then("another"), Say(name="another", score=1)).judge(pairs=2)
    assert score_of(home) == ("explicit", -1, 1.0)
    assert home.pairs() == {"behaviour:regenerated": [(1, 1), (-1, -1)]}
    with home.world.store.read() as conn:
        assert version_stats.judge_user_agreement(conn) == (0, 0), "that of judges alone"


def explicit_scores(world: World, fired_and_scores: Sequence[tuple[bool, int]]) -> None:
    for n, (fired, score) in enumerate(fired_and_scores):
        score_turns(world, {f"t{n:02}": score})
        if fired:
            with world.store.write() as conn:
                reactions.record_observation(conn, f"t{n:02}", "copied", source=None, at=5.0)


@pytest.mark.parametrize(
    ("fired_and_scores", "is_trusted"),
    [
        ([(True, 1), (False, -1)] * 15, True),
        ([(True, 1), (False, 1), (True, -1), (False, -1)] * 8, False),
        ([(True, 1)] * 3 + [(False, 1), (False, -1)] * 15, True),
    ],
    ids=["agrees", "is a guess", "is rare"],
)
def test_a_signal_that_people_contradict_is_not_trained_on(
    world: World, fired_and_scores: list[tuple[bool, int]], is_trusted: bool
) -> None:
    with world.store.write() as conn:
        policies.ensure_root(conn, base="b", identity=IDENTITY, at=0.0)
    world.close("unscored", "hm")
    with world.store.write() as conn:
        reactions.record_observation(conn, "unscored", "copied", source=None, at=5.0)
    explicit_scores(world, fired_and_scores)
    judge_all(world, lambda item: None, 0)
    assert ("unscored" in trainable(world)) is is_trusted
    status = read(world, lambda conn: collect_status(conn, 10.0))
    (row,) = [row for row in status["judges"] if row["judge"] == "behaviour:copied"]
    assert (row["trained_on"], row["pairs"]) == (is_trusted, len(fired_and_scores))
    shown = CliRunner().invoke(cli, ["status", "--home", world.config.home]).output
    assert f"behaviour:copied: kappa {row['value']:.2f}" in shown
    diagnoses = read(world, lambda conn: diagnose.find_diagnoses(world.config, conn, 10.0))
    found = [one for one in diagnoses if one.name == "a signal is not trusted"]
    assert [one.settings for one in found] == (
        [] if is_trusted else [{"judge.signals.copied": 0.0}]
    )
