"""Prefix tree of a batch: rows that begin with the same tokens share them, and each shared token is computed once.

Common prefixes are the system prompt of an agent, the history of a session, the prompt of several choices of a turn,
and a plain prompt that a hinted prompt repeats up to the hint. The tree is stored in depth-first order, so that token i
may attend to token j exactly if `j <= i < end[j]`.

Shapes: B rows, T tokens of the tree, K response tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from openclaw_rl.learner.forward.packing import TokenSequence

# [start, end) in the tokens of the tree.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Run of tokens in which each is the child of the previous one. `above`: ranges of its ancestors, root first."""

    start: int
    end: int
    above: tuple[Range, ...]
    depth: int  # tokens in `above`


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Rows as one packed tree. `kept_K` may repeat a token: the last one of a shared prompt."""

    ids_T: torch.Tensor
    depth_T: torch.Tensor  # position of each token in its row
    end_T: torch.Tensor  # one past the last descendant of each token
    segments: tuple[Segment, ...]
    kept_K: torch.Tensor  # index of the token that predicts each response token, in row order
    padding: int = 0  # unused tokens at the end, in a segment of their own

    @property
    def tokens(self) -> int:
        return len(self.ids_T)


def _common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    n = min(len(a), len(b))
    return int(np.argmin(np.append(a[:n] == b[:n], False)))


def depth_first(sequences: Sequence[NDArray[np.int32]]) -> tuple[list[int], list[int]]:
    """Return (row numbers in depth-first order, number of tokens that each shares with the previous one)."""
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i4").tobytes())
    shared = [0] * bool(order) + [
        _common_prefix(sequences[a], sequences[b]) for a, b in pairwise(order)
    ]
    return order, shared


def count_tokens(rows: Sequence[TokenSequence]) -> int:
    """Return the number of tokens of the rows' tree."""
    sequences = [row.input_ids for row in rows]
    _, shared = depth_first(sequences)
    return sum(map(len, sequences)) - sum(shared)


def group_rows(rows: Sequence[TokenSequence], budget: int) -> list[list[int]]:
    """Return groups of row numbers whose trees have at most max(`budget`, longest row + `budget` / 4) tokens.

    A row near or above the budget must be computed anyway. Rows that share its prefix add little to its tree, while a
    group of their own would compute the whole prefix again.
    """
    sequences = [row.input_ids for row in rows]
    order, shared = depth_first(sequences)
    out: list[list[int]] = []
    size = longest = 0
    for index, common in zip(order, shared, strict=True):
        length = len(sequences[index])
        limit = max(budget, max(longest, length) + budget // 4)
        if out and size + length - common <= limit:
            out[-1].append(index)
            size = size + length - common
            longest = max(longest, length)
        else:
            out.append([index])
            size = longest = length
    return out


def build_tree(rows: Sequence[TokenSequence], device: torch.device) -> PrefixTree:
    """Return the prefix tree of the rows."""
    sequences = [row.input_ids for row in rows]
    order, shared = depth_first(sequences)
    segments: list[Segment] = []
    # Token ranges of each row, in order of depth.
    places: list[tuple[Range, ...]] = [()] * len(rows)
    path: tuple[Range, ...] = ()
    size = 0
    for index, common in zip(order, shared, strict=True):
        path = _path_prefix(path, common)
        new = len(sequences[index]) - common
        # A row that extends the last one extends its segment.
        if new and path and path[-1][1] == size:
            segments[-1] = replace(segments[-1], end=size + new)
            path = (*path[:-1], (path[-1][0], size + new))
        elif new:
            segments.append(Segment(start=size, end=size + new, above=path, depth=common))
            path = (*path, (size, size + new))
        size += new
        places[index] = path
    ids = np.empty(size, np.int64)
    depth = np.empty(size, np.int64)
    end = np.arange(1, size + 1)
    predictors = []
    for row, ranges in zip(rows, places, strict=True):
        at = np.concatenate([np.arange(*r) for r in ranges])
        ids[at] = row.input_ids
        depth[at] = np.arange(len(at))
        end[at] = np.maximum(end[at], at[-1] + 1)
        predictors.append(at[len(row.prompt_ids) - 1 :])
    return PrefixTree(
        ids_T=torch.from_numpy(ids).to(device),
        depth_T=torch.from_numpy(depth).to(device),
        end_T=torch.from_numpy(end).to(device),
        segments=tuple(segments),
        kept_K=torch.from_numpy(np.concatenate(predictors)).to(device),
    )


def pad_tree(tree: PrefixTree, tokens: int) -> PrefixTree:
    """Return the tree padded to `tokens` tokens; no token attends to the padding, and no output uses it."""
    size = tree.tokens
    device = tree.ids_T.device
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


def _path_prefix(path: tuple[Range, ...], tokens: int) -> tuple[Range, ...]:
    """Return the first `tokens` tokens of a path."""
    out: list[Range] = []
    for start, end in path:
        if tokens <= 0:
            break
        out.append((start, min(end, start + tokens)))
        tokens -= end - start
    return tuple(out)
