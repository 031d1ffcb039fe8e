"""`python -m benchmarks.environments` finds growth that is planted, and none in a run whose size only varies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.environments import compare_sizes, size_at
from benchmarks.episode_load import ROLES, RunSample

EPISODES = 1000


def make_samples(grown: Callable[[int], float], what: str = "") -> list[RunSample]:
    """Return a sample after each second episode of a run whose size varies. `grown`: more of `what`, by episode."""

    def more(name: str, number: int) -> float:
        return number % 7 + (grown(number) if name == what else 0.0)

    return [
        RunSample(
            episodes=number,
            memory={role: 50 + more(role, number) for role in ROLES},
            descriptors={
                process: 20 + more(f"{process} descriptors", number)
                for process in ("runner", "gateway")
            },
            processes=25 + more("processes", number),
            files={place: 30 + more(f"{place} files", number) for place in ("home", "scratch")},
        )
        for number in range(0, EPISODES + 40, 2)
    ]


def broken_bounds(samples: list[RunSample]) -> list[str]:
    early, late = (size_at(samples, end, EPISODES / 10) for end in (EPISODES / 4, EPISODES))
    return [check.name for check in compare_sizes("tools", early, late) if not check.holds]


def test_a_size_that_only_varies_has_not_grown() -> None:
    assert broken_bounds(make_samples(lambda _: 0.0)) == []


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("runner", "tools: more runner MB"),
        ("gateway", "tools: more gateway MB"),
        ("browser", "tools: more browser MB"),
        ("gateway descriptors", "tools: more descriptors of the gateway"),
        ("processes", "tools: more processes"),
        ("home files", "tools: more files in the home folder"),
        ("scratch files", "tools: more files in the scratch folder"),
    ],
)
def test_leftovers_of_each_episode_are_named(what: str, named: str) -> None:
    assert broken_bounds(make_samples(lambda episode: 0.1 * episode, what)) == [named]


def test_growth_before_the_first_size_is_not_counted() -> None:
    assert broken_bounds(make_samples(lambda episode: min(episode, 100.0), "gateway")) == []


def test_a_run_that_is_too_short_is_refused() -> None:
    with pytest.raises(RuntimeError, match="play more episodes"):
        size_at(make_samples(lambda _: 0.0)[:10], EPISODES, EPISODES / 10)
