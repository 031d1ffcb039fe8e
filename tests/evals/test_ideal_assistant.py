"""The upper bound of `make learn-days`: what the ideal assistant says and chooses, and what its months come to."""

from __future__ import annotations

import pytest
from benchmarks.demo.personas import UserReaction
from benchmarks.ideal_assistant import IdealAssistant, simulate_month
from benchmarks.thirty_days import draw_about

from openclaw_rl.evals.styles import OPPOSITE, TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import all_facts, is_correct, questions_about

QUESTION = questions_about(all_facts()[0])[0]
SHORT, LONG = frozenset[Taste]({"short"}), frozenset[Taste]({"long"})


def reaction(*, praised: bool, known: bool = True) -> UserReaction:
    return UserReaction(
        session=0, turn=0, question=QUESTION, reply="", phrase="", satisfied=praised, correct=True, praised=praised,
        known=known,
    )  # fmt: skip


@pytest.mark.parametrize("first", TASTES)
@pytest.mark.parametrize("second", TASTES)
def test_its_replies_are_right_and_have_the_styles(first: Taste, second: Taste) -> None:
    both = OPPOSITE[first] != second
    styles = frozenset({first, second}) if both else frozenset({second})
    assistant = IdealAssistant(tastes=(first, second))
    for fact in all_facts():
        reply = assistant.write_reply(fact, styles)
        assert is_correct(questions_about(fact)[0], reply), reply
        assert all(has_style(style, reply) for style in styles), reply


def test_it_chooses_the_likelier_taste_by_drift_and_reactions() -> None:
    assert IdealAssistant(tastes=("short", "casual")).choose_styles(0.5, []) == {
        "short",
        "casual",
    }, "a reply has both"
    choose = IdealAssistant(tastes=("short", "long")).choose_styles
    assert choose(0.3, []) == SHORT
    assert choose(0.3, [(SHORT, reaction(praised=False))]) == LONG
    assert choose(0.3, [(SHORT, reaction(praised=False, known=False))]) == SHORT, (
        "nobody understood it"
    )
    assert choose(0.05, [(SHORT, reaction(praised=False))]) == SHORT, (
        "more likely said by mistake: 0.9 x 0.05 of 0.14"
    )
    assert choose(0.3, [(SHORT, reaction(praised=False)), (LONG, reaction(praised=False))]) == SHORT


def test_its_months() -> None:
    def month(tastes: tuple[Taste, Taste], untrained: float) -> tuple[int, float, float]:
        found = simulate_month(
            tastes,
            ["sum"] * 9,
            turns=40,
            last=2,
            seed=1,
            draw=draw_about,
            untrained=lambda taste, subject: untrained,
        )
        return found.below, found.satisfied, found.worst_of_last

    assert month(("short", "casual"), 1.0) == (0, 1.0, 1.0)
    below, satisfied, last = month(("short", "long"), 0.0)
    assert below == 0
    assert 0.75 < satisfied < 0.98
    assert last == 1.0
    assert month(("short", "long"), 1.0)[0] in (1, 2, 3), "the days of the drift alone"
