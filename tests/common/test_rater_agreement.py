"""Kappa and the Wilson interval against published numbers."""

from __future__ import annotations

import pytest

from openclaw_rl.common.statistics.rater_agreement import cohens_kappa, wilson_interval


def pairs_of(table: list[list[int]]) -> list[tuple[int, int]]:
    return [
        (i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("table", "value", "error"),
    [
        # Fleiss, Statistical Methods for Rates and Proportions, 2nd ed., section 13.1
        ([[75, 1, 4], [5, 4, 1], [0, 0, 10]], 0.676, 0.0877),
        # Agresti's ratings of 91 couples, as the R package vcd prints them: Kappa(SexualFun)
        ([[7, 7, 2, 3], [2, 8, 3, 7], [1, 5, 4, 9], [2, 8, 9, 14]], 0.1293, 0.0686),
    ],
)
def test_kappa_and_its_standard_error_are_the_published_ones(
    table: list[list[int]], value: float, error: float
) -> None:
    kappa = cohens_kappa(pairs_of(table))
    assert kappa is not None
    assert kappa.value == pytest.approx(value, abs=5e-4)
    assert (kappa.high - kappa.low) / (2 * 1.96) == pytest.approx(error, abs=5e-5)
    assert kappa.pairs == sum(map(sum, table))


@pytest.mark.parametrize("pairs", [[], [(1, 1)] * 30])
def test_kappa_is_not_defined_without_two_categories(pairs: list[tuple[int, int]]) -> None:
    assert cohens_kappa(pairs) is None


def test_kappa_of_full_agreement_and_of_a_rater_who_says_one_thing() -> None:
    full, constant = cohens_kappa([(1, 1), (-1, -1)] * 10), cohens_kappa([(1, 1), (1, -1)] * 10)
    assert full is not None
    assert (full.value, full.low, full.high) == (1, 1, 1)
    assert constant is not None
    assert (constant.value, constant.low, constant.high) == (0, 0, 0)


@pytest.mark.parametrize("counts", [(7, 7, 6), (12, 15, 1), (22, 6, 1), (18, 11, 1)])
def test_kappa_of_a_rater_who_says_one_thing_is_not_above_0_by_rounding(
    counts: tuple[int, ...],
) -> None:
    """By rounding, such a judge was above a `judge.min_kappa` of 0."""
    pairs = [
        (1, user) for user, count in zip((1, -1, 0), counts, strict=True) for _ in range(count)
    ]
    kappa = cohens_kappa(pairs)
    assert kappa is not None
    assert (kappa.value, kappa.low, kappa.high) == (0, 0, 0)


def test_the_wilson_interval_is_the_published_one() -> None:
    """Newcombe 1998, Statistics in Medicine 17: 857-872, table I, method 3."""
    published = {
        **{(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605)},
        **{(0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718)},
    }
    for (count, of), (low, high) in published.items():
        assert wilson_interval(count, of) == (
            pytest.approx(low, abs=5e-5),
            pytest.approx(high, abs=5e-5),
        )
