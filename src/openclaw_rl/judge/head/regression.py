"""Multinomial logistic regression with an L2 penalty, in numpy: fit, folds, and the temperature of its logits.

Shape legend: n rows, D columns, R rank, C classes. Rows are fewer than columns, so the fit works in the space that the
rows span: the penalty is the same there, and a fit of 600 rows takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
MAX_ITERATIONS = 500
_HISTORY = 12
# Of the gradient's largest component.
_TOLERANCE = 1e-5
_MIN_SCALE = 1e-6
_SUFFICIENT_DECREASE = 1e-4
_MAX_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHead:
    """A linear classifier on standardised columns. `mean`, `scale` [D], `weights` [D, C], `bias` [C]."""

    mean: Floats
    scale: Floats
    weights: Floats
    bias: Floats

    def logits(self, features: Floats) -> Floats:
        """Return the logits [n, C] of rows [n, D]."""
        return (features - self.mean) / self.scale @ self.weights + self.bias


def softmax(logits: Floats) -> Floats:
    """Return probabilities [n, C]."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return normalised


def fit_head(
    features: Floats,
    labels: Labels,
    *,
    classes: int,
    l2: float,
    factors: Floats | None = None,
    row_weights: Floats | None = None,
) -> LinearHead:
    """Fit a head to rows [n, D] with labels [n] in [0, classes).

    Minimises the weighted mean of the cross-entropy plus `l2` times the squared norm of the weights. `factors` [D]: by
    which the standardised columns are multiplied, so that large ones are penalised less; `row_weights` [n]: positive.
    Both are 1 by default.
    """
    rows = len(labels)
    weight = np.ones(rows) if row_weights is None else np.asarray(row_weights, dtype=np.float64)
    share = weight / weight.sum()
    mean = share @ features
    scale = np.sqrt(share @ (features - mean) ** 2) + _MIN_SCALE
    if factors is not None:
        scale = scale / factors
    standardised = (features - mean) / scale
    basis, coordinates = _span(standardised)
    target = np.zeros((rows, classes))
    target[np.arange(rows), labels] = 1.0
    rank = coordinates.shape[1]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat[: rank * classes].reshape(rank, classes)
        bias = flat[rank * classes :]
        logits = coordinates @ weights + bias
        probabilities = softmax(logits)
        chosen = probabilities[np.arange(rows), labels]
        value = -float(share @ np.log(np.maximum(chosen, 1e-300)))
        value += l2 * float((weights**2).sum())
        error = (probabilities - target) * share[:, None]
        slope = coordinates.T @ error + 2 * l2 * weights
        return value, np.concatenate([slope.ravel(), error.sum(axis=0)])

    flat = minimise(loss, np.zeros((rank + 1) * classes))
    return LinearHead(
        mean=mean,
        scale=scale,
        weights=basis @ flat[: rank * classes].reshape(rank, classes),
        bias=flat[rank * classes :],
    )


def _span(rows: Floats) -> tuple[Floats, Floats]:
    """Return an orthonormal basis [D, R] of the space of the rows [n, D], and their coordinates [n, R]."""
    if rows.shape[0] >= rows.shape[1]:
        return np.eye(rows.shape[1]), rows
    # The eigenvectors of the small matrix of products are cheaper than a decomposition of the rows.
    values, vectors = np.linalg.eigh(rows @ rows.T)
    is_large = values > max(float(values[-1]), 0.0) * 1e-10
    sizes = np.sqrt(values[is_large])
    basis = rows.T @ (vectors[:, is_large] / sizes)
    return basis, vectors[:, is_large] * sizes


def minimise(function: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """Return a minimum of a smooth convex function by L-BFGS (Nocedal and Wright, algorithm 7.5).

    `function` returns value and gradient. The step is halved until the value decreases enough.
    """
    point = start
    value, gradient = function(point)
    pairs: list[tuple[Floats, Floats, float]] = []
    for _ in range(MAX_ITERATIONS):
        if float(np.abs(gradient).max(initial=0.0)) < _TOLERANCE:
            break
        direction = -_inverse_hessian_product(gradient, pairs)
        slope = float(direction @ gradient)
        if slope >= 0:
            pairs.clear()
            direction = -gradient
            slope = float(direction @ gradient)
        size = 1.0
        for _ in range(_MAX_HALVINGS):
            new_value, new_gradient = function(point + size * direction)
            if new_value <= value + _SUFFICIENT_DECREASE * size * slope:
                break
            size /= 2
        else:
            break
        step = size * direction
        change = new_gradient - gradient
        curvature = float(step @ change)
        if curvature > 1e-14:
            pairs.append((step, change, curvature))
            del pairs[:-_HISTORY]
        point = point + step
        value = new_value
        gradient = new_gradient
    return point


def _inverse_hessian_product(gradient: Floats, pairs: list[tuple[Floats, Floats, float]]) -> Floats:
    """Return the product of the approximate inverse Hessian with the gradient, by two loops over the last steps."""
    out = gradient.copy()
    factors = []
    for step, change, curvature in reversed(pairs):
        factor = float(step @ out) / curvature
        factors.append(factor)
        out -= factor * change
    if pairs:
        _, change, curvature = pairs[-1]
        out *= curvature / float(change @ change)
    for (step, change, curvature), factor in zip(pairs, reversed(factors), strict=True):
        out += (factor - float(change @ out) / curvature) * step
    return out


def make_folds(labels: Labels, folds: int, *, seed: int = 0) -> Labels:
    """Return the fold [n] of each row. Each class is spread evenly over the folds."""
    out = np.zeros(len(labels), dtype=np.int64)
    random = np.random.default_rng(seed)
    offset = 0
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        out[members] = (np.arange(len(members)) + offset) % folds
        offset += len(members)
    return out


def out_of_fold_logits(
    features: Floats,
    labels: Labels,
    folds: Labels,
    *,
    classes: int,
    fit: Callable[[Floats, Labels], LinearHead],
) -> Floats:
    """Return the logits [n, C] of each row, by the head that `fit` made of the other folds."""
    out = np.zeros((len(labels), classes))
    for fold in np.unique(folds):
        held_out = folds == fold
        head = fit(features[~held_out], labels[~held_out])
        out[held_out] = head.logits(features[held_out])
    return out


def fit_temperature(logits: Floats, labels: Labels) -> float:
    """Return the temperature, in [0.1, 10], at which out-of-fold logits have the least cross-entropy."""
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        probabilities = softmax(logits / np.exp(log_temperature))
        return -float(np.log(np.maximum(probabilities[rows, labels], 1e-300)).mean())

    low = np.log(0.1)
    high = np.log(10.0)
    ratio = (np.sqrt(5.0) - 1) / 2
    # Golden section; the loss has one minimum in the inverse temperature, and so in its logarithm.
    for _ in range(60):
        left = high - ratio * (high - low)
        right = low + ratio * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))
