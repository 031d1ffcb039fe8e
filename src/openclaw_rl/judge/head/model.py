"""The head: a linear classifier over the columns of a record, calibrated, with the labelled rows that are nearest.

Shape legend: n labelled rows, D columns, C the classes in the order of `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openclaw_rl.judge.head.features import TEXT_COLUMNS, TEXT_SCALE
from openclaw_rl.judge.head.records import DEPTHS, POOLINGS
from openclaw_rl.judge.head.regression import (
    Floats,
    Labels,
    LinearHead,
    fit_head,
    fit_temperature,
    make_folds,
    out_of_fold_logits,
    softmax,
)

CLASSES: Sequence[int | None] = (1, -1, None)
"""The score of each class; None: no evidence."""
L2 = 0.1
FOLDS = 10
PERSON_WEIGHT = 4.0
"""Weight of a person's own row beside a labelled one."""
MAX_PERSON_SHARE = 0.5
"""Of the weight of the labelled rows: all rows of a person together weigh at most as much."""
NEAREST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Rows with known classes. `features` [n, D], `labels` [n]: places in `CLASSES`; `texts`: the reactions."""

    features: Floats
    labels: Labels
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def plus(self, others: LabelledRows) -> LabelledRows:
        return LabelledRows(
            features=np.concatenate([self.features, others.features]),
            labels=np.concatenate([self.labels, others.labels]),
            texts=[*self.texts, *others.texts],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReport:
    """The head on rows that it was not fitted to (cross-validation over the labelled set), beside the rules.

    `right`: share of rows whose most likely class is the expected one. `coverage`: share of the rows with a score that
    are given one; `precision`: share of the given scores that are right. Of both judges.
    """

    rows: int
    right: float
    complaints: float
    coverage: float
    precision: float
    threshold: float
    rules_right: float
    rules_coverage: float
    rules_precision: float

    @property
    def beats_rules(self) -> bool:
        """Whether the head is right more often, and scores at least as many."""
        return self.right > self.rules_right and self.coverage >= self.rules_coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """Opinion of the head on a record. `probabilities`: of `CLASSES`; `is_sure`: whether one is likely enough.

    `score`: None if none is, or if the likely one is no evidence. `nearest`: the reactions of the labelled rows of the
    likeliest class that are nearest.
    """

    score: int | None
    is_sure: bool
    probabilities: tuple[float, float, float]
    nearest: tuple[str, ...]

    def describe(self) -> str:
        """Return the opinion in words."""
        good, bad, neither = self.probabilities
        text = f"good {good:.2f}, bad {bad:.2f}, no evidence {neither:.2f}"
        if not self.nearest:
            return text
        examples = " and ".join(f'"{_shorten(one)}"' for one in self.nearest)
        return f"{text}; nearest examples: {examples}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A fitted head. `threshold`: probability from which a class counts; `rows`: what it was fitted to."""

    linear: LinearHead
    temperature: float
    threshold: float
    rows: LabelledRows

    def classify(self, features: Floats) -> Opinion:
        """Return the opinion on the columns [D] of one record."""
        row = features[None]
        probabilities = softmax(self.linear.logits(row) / self.temperature)[0]
        likely = int(probabilities.argmax())
        is_sure = float(probabilities[likely]) >= self.threshold
        good, bad, neither = (float(one) for one in probabilities)
        return Opinion(
            score=CLASSES[likely] if is_sure else None,
            is_sure=is_sure,
            probabilities=(good, bad, neither),
            nearest=self._nearest_texts(row[0], likely),
        )

    def _nearest_texts(self, row: Floats, label: int) -> tuple[str, ...]:
        """Return the reactions of the nearest rows of a class, by the cosine of their states."""
        members = np.flatnonzero(self.rows.labels == label)
        if not len(members):
            return ()
        mean = self.linear.mean
        scale = self.linear.scale
        others = (self.rows.features[members] - mean) / scale
        own = (row - mean) / scale
        lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(own) + 1e-12
        similarity = others @ own / lengths
        order = np.argsort(-similarity)
        texts = dict.fromkeys(self.rows.texts[members[place]] for place in order)
        return tuple(texts)[:NEAREST]


def fit_linear(features: Floats, labels: Labels, row_weights: Floats | None = None) -> LinearHead:
    """Fit a head to the columns [n, D] of records: one for each pooling, with the counts, whose logits are averaged.

    Heads that see different parts err in different places. Their mean is one linear head over all columns.
    """
    columns = features.shape[1]
    blocks = pooling_columns(columns)
    mean = np.zeros(columns)
    scale = np.ones(columns)
    weights = np.zeros((columns, len(CLASSES)))
    bias = np.zeros(len(CLASSES))
    for block in blocks:
        factors = np.ones(len(block))
        factors[-TEXT_COLUMNS:] = TEXT_SCALE
        part = fit_head(
            features[:, block],
            labels,
            classes=len(CLASSES),
            l2=L2,
            factors=factors,
            row_weights=row_weights,
        )
        mean[block] = part.mean
        scale[block] = part.scale
        weights[block] += part.weights / len(blocks)
        bias += part.bias / len(blocks)
    return LinearHead(mean=mean, scale=scale, weights=weights, bias=bias)


def pooling_columns(columns: int) -> list[Labels]:
    """Return the places of the columns of each pooling, in all layers, and of the counts behind them."""
    states = columns - TEXT_COLUMNS
    by_layer = np.arange(states).reshape(len(DEPTHS), POOLINGS, -1)
    counts = np.arange(states, columns)
    return [np.concatenate([by_layer[:, one].ravel(), counts]) for one in range(POOLINGS)]


def fit_shared_head(
    rows: LabelledRows, *, groups: Labels, min_precision: float
) -> tuple[Head, Floats]:
    """Fit the head of all people. Returns it with the out-of-fold probabilities [n, C].

    `groups` [n]: rows of one group are in the same fold, and its first row is the reaction itself. Temperature and
    threshold follow from the reactions themselves.
    """
    labels = rows.labels
    names, plain = np.unique(groups, return_index=True)
    fold_of_group = make_folds(labels[plain], FOLDS)
    folds = fold_of_group[np.searchsorted(names, groups)]
    logits = out_of_fold_logits(rows.features, labels, folds, classes=len(CLASSES), fit=fit_linear)
    temperature = fit_temperature(logits[plain], labels[plain])
    probabilities = softmax(logits / temperature)
    head = Head(
        linear=fit_linear(rows.features, labels),
        temperature=temperature,
        threshold=choose_threshold(probabilities[plain], labels[plain], min_precision),
        rows=rows,
    )
    return head, probabilities


def fit_person_head(shared: Head, own: LabelledRows) -> Head:
    """Fit a head to the shared rows and those of one person, whose weight is bounded."""
    count = len(shared.rows)
    weight = min(PERSON_WEIGHT, MAX_PERSON_SHARE * count / max(len(own), 1))
    rows = shared.rows.plus(own)
    row_weights = np.concatenate([np.ones(count), np.full(len(own), weight)])
    linear = fit_linear(rows.features, rows.labels, row_weights)
    return replace(shared, linear=linear, rows=rows)


def choose_threshold(probabilities: Floats, labels: Labels, min_precision: float) -> float:
    """Return the least probability from which on the scores of the head are right with `min_precision`.

    A share counts less its standard error, because the threshold is chosen on the rows that measure it. Above 1 if no
    probability suffices, so that nothing is scored.
    """
    likely = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    is_scored = np.array([CLASSES[one] is not None for one in likely])
    order = np.argsort(-confidence[is_scored], kind="stable")
    sure = confidence[is_scored][order]
    if not len(sure):
        return 1.1
    is_right = (likely == labels)[is_scored][order]
    count = np.arange(1, len(order) + 1)
    precision = np.cumsum(is_right) / count
    error = np.sqrt(precision * (1 - precision) / count)
    enough = np.flatnonzero(precision - error >= min_precision)
    return float(sure[enough[-1]]) if len(enough) else 1.1


def _shorten(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
