"""The head's regression: on arrays whose answer is known, and against properties that every fit has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.judge.head import regression
from openclaw_rl.judge.head.model import choose_threshold

CLASSES = 3


def rows(count: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three classes, each around a point of its own."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    centres = random.normal(0, 2, (CLASSES, columns))
    return centres[labels] + random.normal(0, 1, (count, columns)), labels.astype(np.int64)


def penalised_loss(
    head: regression.LinearHead, features: np.ndarray, labels: np.ndarray, l2: float
) -> float:
    chosen = regression.softmax(head.logits(features))[np.arange(len(labels)), labels]
    return float(-np.log(chosen).mean() + l2 * (head.weights**2).sum())


@pytest.mark.parametrize(("count", "columns"), [(30, 200), (200, 5)])
def test_separable_rows_are_classified(count: int, columns: int) -> None:
    features, labels = rows(count, columns)
    head = regression.fit_head(features, labels, classes=CLASSES, l2=1e-3)
    assert (head.logits(features).argmax(axis=1) == labels).mean() > 0.95


@pytest.mark.parametrize(("count", "columns"), [(30, 80), (80, 6)])
def test_the_fit_is_a_minimum(count: int, columns: int) -> None:
    """No small change of weights or bias has a lower loss, whether rows or columns are more."""
    features, labels = rows(count, columns)
    l2 = 0.05
    head = regression.fit_head(features, labels, classes=CLASSES, l2=l2)
    least = penalised_loss(head, features, labels, l2)
    random = np.random.default_rng(1)
    for _ in range(20):
        changed = regression.LinearHead(
            mean=head.mean,
            scale=head.scale,
            weights=head.weights + random.normal(0, 1e-3, head.weights.shape),
            bias=head.bias + random.normal(0, 1e-3, head.bias.shape),
        )
        assert penalised_loss(changed, features, labels, l2) >= least - 1e-9


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 100), st.floats(-50, 50))
def test_scale_and_origin_of_the_columns_do_not_matter(scale: float, origin: float) -> None:
    features, labels = rows(40, 60)
    fitted = regression.fit_head(features, labels, classes=CLASSES, l2=0.1)
    moved = features * scale + origin
    other = regression.fit_head(moved, labels, classes=CLASSES, l2=0.1)
    np.testing.assert_allclose(other.logits(moved), fitted.logits(features), atol=1e-2)


def test_a_weight_counts_like_repeated_rows() -> None:
    features, labels = rows(30, 4)
    weights = np.ones(30)
    weights[:6] = 3.0
    repeated = np.concatenate([features, features[:6], features[:6]])
    weighted = regression.fit_head(features, labels, classes=CLASSES, l2=0.1, row_weights=weights)
    longer = regression.fit_head(
        repeated, np.concatenate([labels, labels[:6], labels[:6]]), classes=CLASSES, l2=0.1
    )
    np.testing.assert_allclose(weighted.logits(features), longer.logits(features), atol=1e-4)


def test_a_large_factor_makes_a_column_count_more() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    features = random.normal(0, 1, (60, 30))
    features[:, 0] += labels
    factors = np.ones(30)
    plain = regression.fit_head(features, labels, classes=2, l2=1.0, factors=factors)
    factors[0] = 10.0
    boosted = regression.fit_head(features, labels, classes=2, l2=1.0, factors=factors)

    def share(head: regression.LinearHead) -> float:
        effect = np.abs(head.weights[:, 0] / head.scale)
        return float(effect[0] / effect.sum())

    assert share(boosted) > 2 * share(plain)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=10, max_size=60), st.integers(2, 5))
def test_folds_are_even_in_each_class(labels: list[int], count: int) -> None:
    known = np.array(labels, dtype=np.int64)
    folds = regression.make_folds(known, count)
    for label in np.unique(known):
        sizes = np.bincount(folds[known == label], minlength=count)
        assert sizes.max() - sizes.min() <= 1


def test_no_row_is_judged_by_a_head_that_saw_it() -> None:
    """Labels by chance: a head that saw the row would repeat its label, one that did not cannot know it."""
    random = np.random.default_rng(0)
    features = random.normal(0, 1, (90, 300))
    labels = random.integers(0, CLASSES, 90)
    folds = regression.make_folds(labels, 5)

    def fit(some: np.ndarray, known: np.ndarray) -> regression.LinearHead:
        return regression.fit_head(some, known, classes=CLASSES, l2=1e-3)

    logits = regression.out_of_fold_logits(features, labels, folds, classes=CLASSES, fit=fit)
    assert (logits.argmax(axis=1) == labels).mean() < 0.6


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_calibrated_logits_is_found(temperature: float) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (4000, CLASSES))
    probabilities = regression.softmax(logits)
    labels = np.array([random.choice(CLASSES, p=row) for row in probabilities])
    fitted = regression.fit_temperature(logits * temperature, labels)
    assert fitted == pytest.approx(temperature, rel=0.15)


def test_the_threshold_is_the_least_that_meets_the_precision() -> None:
    good = np.array([0.95, 0.9, 0.8, 0.7, 0.6])
    probabilities = np.stack([good, (1 - good) / 2, (1 - good) / 2], axis=1)
    labels = np.array([0, 0, 0, 1, 0], dtype=np.int64)
    assert choose_threshold(probabilities, labels, 1.0) == pytest.approx(0.8)
    assert choose_threshold(probabilities, labels, 0.6) == pytest.approx(0.6)
    assert choose_threshold(probabilities, labels, 0.8) == pytest.approx(0.8), "less its error"
    assert choose_threshold(probabilities, 1 - labels.clip(0, 1), 0.9) > 1


def test_rows_without_evidence_do_not_count_for_the_precision() -> None:
    probabilities = np.array([[0.01, 0.01, 0.98], [0.9, 0.05, 0.05]])
    assert choose_threshold(probabilities, np.array([0, 0]), 0.9) == pytest.approx(0.9)
