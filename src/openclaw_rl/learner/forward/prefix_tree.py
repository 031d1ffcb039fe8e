"""One batch, one tree: rows that begin with the same tokens share these tokens, and each is computed once.

An agent's turns all begin with one long prompt, the turns of a session with one another's history, the choices of a
turn with one prompt, a hinted prompt with the plain one up to the hint. The tree is laid out in depth-first order, so
that what a token may look at is two comparisons: `j <= i < end[j]`.

Legend: B rows, T tokens of the tree, K response tokens of all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from openclaw_rl.learner.forward.packing import Row

Range = tuple[int, int]  # [start, end) of the tree's tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens, each below the one before it, and what stands above the first: ranges in order of depth."""

    start: int
    end: int
    above: tuple[Range, ...]
    depth: int  # tokens in `above`


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Rows as one packed tree. `kept_K` may name a token several times: the last of a prompt that rows share."""

    ids_T: torch.Tensor
    depth_T: torch.Tensor  # position in the row
    end_T: torch.Tensor  # behind the last token below this one
    segments: tuple[Segment, ...]
    kept_K: torch.Tensor  # the token that predicts each response token, rows in the order given
    targets_K: torch.Tensor
    temperature_K: torch.Tensor  # float64, on the CPU
    padding: int = 0  # rootless tokens at the end, a segment of their own, that nobody asks about

    @property
    def tokens(self) -> int:
        return len(self.ids_T)


def fed(row: Row) -> NDArray[np.int32]:
    """What a row feeds to the model: all but its last token."""
    return np.concatenate([row.prompt_ids, row.response_ids[:-1]]).astype(np.int32, copy=False)


def _common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def depth_first(sequences: Sequence[NDArray[np.int32]]) -> tuple[list[int], list[int]]:
    """(row numbers in depth-first order, how many tokens each shares with the one before it)."""
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i4").tobytes())
    shared = [0] * bool(order) + [_common(sequences[a], sequences[b]) for a, b in pairwise(order)]
    return order, shared


def groups(rows: Sequence[Row], budget: int) -> list[list[int]]:
    """Row numbers in groups whose trees have at most `budget` tokens, or a quarter of it above their longest row.

    A row that is near the budget or over it is computed all the same. What hangs on its trunk adds little to it, and
    alone would compute the whole trunk again.
    """
    sequences = [fed(row) for row in rows]
    order, shared = depth_first(sequences)
    out: list[list[int]] = []
    size = longest = 0
    for index, common in zip(order, shared, strict=True):
        length = len(sequences[index])
        limit = max(budget, max(longest, length) + budget // 4)
        if out and size + length - common <= limit:
            out[-1].append(index)
            size, longest = size + length - common, max(longest, length)
        else:
            out.append([index])
            size = longest = length
    return out


def plant(rows: Sequence[Row], device: torch.device) -> Tree:
    """The tree of some rows."""
    sequences = [fed(row) for row in rows]
    order, shared = depth_first(sequences)
    segments: list[Segment] = []
    places: list[tuple[Range, ...]] = [()] * len(rows)  # of each row: where its tokens lie, in order of depth
    path: tuple[Range, ...] = ()
    size = 0
    for index, common in zip(order, shared, strict=True):
        path = _first(path, common)
        new = len(sequences[index]) - common
        if new and path and path[-1][1] == size:  # a row that goes on where the last one ended goes on with its segment
            segments[-1] = replace(segments[-1], end=size + new)
            path = (*path[:-1], (path[-1][0], size + new))
        elif new:
            segments.append(Segment(start=size, end=size + new, above=path, depth=common))
            path = (*path, (size, size + new))
        size += new
        places[index] = path
    ids, depth, end = np.empty(size, np.int64), np.empty(size, np.int64), np.arange(1, size + 1)
    for index, ranges in enumerate(places):
        at = np.concatenate([np.arange(*r) for r in ranges])
        ids[at], depth[at] = sequences[index], np.arange(len(at))
        end[at] = np.maximum(end[at], at[-1] + 1)
    return Tree(
        ids_T=torch.from_numpy(ids).to(device),
        depth_T=torch.from_numpy(depth).to(device),
        end_T=torch.from_numpy(end).to(device),
        segments=tuple(segments),
        kept_K=torch.cat([_predictors(r, p) for r, p in zip(rows, places, strict=True)]).to(device),
        targets_K=torch.cat([torch.from_numpy(r.response_ids.astype("int64")) for r in rows]).to(device),
        temperature_K=torch.cat([torch.full((len(r.response_ids),), r.temperature, dtype=torch.float64) for r in rows]),
    )


def pad(tree: Tree, tokens: int) -> Tree:
    """The same tree with rootless tokens behind it, `tokens` in all, that nothing sees and nobody asks about."""
    size, device = tree.tokens, tree.ids_T.device
    if tokens == size:
        return tree
    rest = torch.arange(tokens - size, device=device)
    return replace(
        tree,
        ids_T=torch.cat([tree.ids_T, torch.zeros_like(rest)]),
        depth_T=torch.cat([tree.depth_T, rest]),
        end_T=torch.cat([tree.end_T, torch.full_like(rest, tokens)]),
        segments=(*tree.segments, Segment(start=size, end=tokens, above=(), depth=0)),
        padding=tokens - size,
    )


def _first(path: tuple[Range, ...], tokens: int) -> tuple[Range, ...]:
    """The first `tokens` tokens of a path."""
    out: list[Range] = []
    for start, end in path:
        if tokens <= 0:
            break
        out.append((start, min(end, start + tokens)))
        tokens -= end - start
    return tuple(out)


def _predictors(row: Row, places: tuple[Range, ...]) -> torch.Tensor:
    """[R] where in the tree the tokens lie that predict the row's response."""
    at = np.concatenate([np.arange(*r) for r in places])
    return torch.from_numpy(at[len(row.prompt_ids) - 1 :])
