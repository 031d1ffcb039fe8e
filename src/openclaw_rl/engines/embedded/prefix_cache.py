"""Prefix cache: keys and values of finished sequences, reused by sequences that begin alike under the same policy.

A tree: a node contains tokens that follow its parent's, and no two siblings start with the same token. So a prefix that
many sequences share, such as the system prompt of all sessions, is stored once. Ids are compared one by one, so a hit
is exact to the token. The size is bounded in tokens; the least recently used leaves are evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from openclaw_rl.types import Ids

# Tokens: minimum of a hit and of a stored sequence.
MIN_PREFIX_TOKENS = 16
# Tokens per node at most: bounds the copy when a sequence branches off inside a node.
PrefixHit = tuple[int, list[Tensor]]
"""Number of tokens of a prefix, and their states in pieces [L, 2, H, n, D]."""
MAX_NODE_TOKENS = 256


@dataclass(slots=True, eq=False)
class PrefixNode:
    """Tree node: a private copy of the `states` [L, 2, H, n, D] of `ids` [n]. A root has no tokens."""

    ids: Ids
    states: Tensor
    parent: PrefixNode | None
    children: dict[int, PrefixNode] = field(default_factory=dict)  # by first id

    def detach(self) -> None:
        """Drop the links to other nodes: their cycles would keep the states until the next garbage collection."""
        self.parent = None
        self.children.clear()


class PrefixCache:
    """Tree of cached prefixes. `limit`: capacity in tokens; `tokens`: present size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = 0
        self._roots: dict[Hashable, PrefixNode] = {}
        # Least recently used first. `_mark_used` goes from the leaf to the root, so a node precedes its parent: the
        # first node is always a leaf, and removing it breaks no path.
        self._use_order: OrderedDict[PrefixNode, Hashable] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of leaves."""
        return sum(not node.children for node in self._use_order)

    def is_cacheable(self, length: int) -> bool:
        """Return whether a sequence of this length would be stored."""
        return MIN_PREFIX_TOKENS <= length <= self.limit

    def find_prefix(self, key: Hashable, ids: Ids) -> PrefixHit | None:
        """Return the longest cached prefix of `ids[:-1]`: number of tokens, and their states in pieces.

        The pieces [L, 2, H, n, D] are views that are valid until the next `add`.
        """
        path, partly = self._match_path(key, ids[:-1])
        pieces = [node.states for node in path]
        if partly:
            pieces[-1] = pieces[-1][:, :, :, :partly]
        length = sum(piece.shape[3] for piece in pieces)
        if length < MIN_PREFIX_TOKENS:
            return None
        self._mark_used(path)
        return length, pieces

    def add(self, key: Hashable, ids: Ids, states: Tensor) -> None:
        """Store a finished sequence; copies the new part of `states` [L, 2, H, len(ids), D]."""
        path, partly = self._match_path(key, ids)
        at = 0
        if path:
            at = sum(len(node.ids) for node in path[:-1])
            at += partly or len(path[-1].ids)
        if partly and at < len(ids):
            path[-1] = self._split_node(key, path[-1], partly)
        if not path:
            self._roots.setdefault(key, PrefixNode(ids[:0], torch.empty(0), None))
        node = path[-1] if path else self._roots[key]
        for start in range(at, len(ids), MAX_NODE_TOKENS):
            end = min(start + MAX_NODE_TOKENS, len(ids))
            part = _contiguous_copy(states[:, :, :, start:end])
            node = self._add_child(key, node, ids[start:end].copy(), part)
            path.append(node)
        self.tokens += len(ids) - at
        self._mark_used(path)
        while self.tokens > self.limit:
            self._remove_leaf(next(iter(self._use_order)))

    def clear(self) -> None:
        """Remove all prefixes."""
        for node in self._use_order:
            node.detach()
        self._use_order.clear()
        self._roots.clear()
        self.tokens = 0

    def remove_policy(self, key: Hashable) -> None:
        """Remove all prefixes of one policy."""
        for node in [n for n, owner in self._use_order.items() if owner == key]:
            del self._use_order[node]
            self.tokens -= len(node.ids)
            node.detach()
        self._roots.pop(key, None)

    def _match_path(self, key: Hashable, ids: Ids) -> tuple[list[PrefixNode], int]:
        """Return the nodes that match the start of `ids`, and the tokens matched in the last one (0: all)."""
        path: list[PrefixNode] = []
        node = self._roots.get(key)
        at = 0
        while node is not None and at < len(ids):
            node = node.children.get(int(ids[at]))
            if node is None:
                break
            path.append(node)
            same = _common_length(node.ids, ids[at : at + len(node.ids)])
            if same < len(node.ids):
                return path, same
            at += same
        return path, 0

    def _split_node(self, key: Hashable, node: PrefixNode, at: int) -> PrefixNode:
        """Split a node in two and return the first half. The second keeps its place in the order of use."""
        assert node.parent is not None
        first = self._add_child(
            key, node.parent, node.ids[:at], _contiguous_copy(node.states[:, :, :, :at])
        )
        node.ids = node.ids[at:]
        node.states = _contiguous_copy(node.states[:, :, :, at:])
        node.parent = first
        first.children[int(node.ids[0])] = node
        return first

    def _add_child(self, key: Hashable, parent: PrefixNode, ids: Ids, states: Tensor) -> PrefixNode:
        """Add a node below `parent`. It ranks as the most recently used until its path is marked."""
        node = parent.children[int(ids[0])] = PrefixNode(ids, states, parent)
        self._use_order[node] = key
        return node

    def _mark_used(self, path: list[PrefixNode]) -> None:
        for node in reversed(path):
            self._use_order.move_to_end(node)

    def _remove_leaf(self, node: PrefixNode) -> None:
        assert node.parent is not None
        assert not node.children, "only a leaf can be removed"
        del self._use_order[node], node.parent.children[int(node.ids[0])]
        self.tokens -= len(node.ids)


def _common_length(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if len(differs) else most


def _contiguous_copy(states: Tensor) -> Tensor:
    return states.clone(memory_format=torch.contiguous_format)
