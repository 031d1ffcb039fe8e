"""The line of descent as a picture: one row for each version, the line of the version in use at the left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from openclaw_rl.store.lineage.version_list import ListedVersion

ROW_HEIGHT = 40
LANE_WIDTH = 22
MAX_LANES = 5
"""Lanes of the picture; what needs more shares the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A version at its place in the picture, in units of the drawing."""

    version: int
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageGraph:
    """Nodes in the order of the versions, and paths (SVG) from each to its parent."""

    nodes: Sequence[GraphNode]
    paths: Sequence[str]
    width: int
    height: int


def draw_lineage(versions: Sequence[ListedVersion], lineage: Collection[int]) -> LineageGraph:
    """Place versions, newest first. `lineage`: the version in use with its ancestors, which get the first lane."""
    lanes = _assign_lanes(versions, lineage)
    nodes = {}
    for row, listed in enumerate(versions):
        nodes[listed.version] = GraphNode(
            version=listed.version,
            x=LANE_WIDTH // 2 + lanes[listed.version] * LANE_WIDTH,
            y=ROW_HEIGHT // 2 + row * ROW_HEIGHT,
        )
    height = ROW_HEIGHT * len(versions)
    paths = []
    for listed in versions:
        if listed.parent is not None:
            child = nodes[listed.version]
            paths.append(_path_to_parent(child, nodes.get(listed.parent), height))
    width = LANE_WIDTH * (1 + max(lanes.values(), default=0))
    return LineageGraph(nodes=list(nodes.values()), paths=paths, width=width, height=height)


def _assign_lanes(versions: Sequence[ListedVersion], lineage: Collection[int]) -> dict[int, int]:
    """Return the lane of each version: a child's lane continues to its parent, if the parent has none yet."""
    lanes: dict[int, int] = {}
    # Lane -> the parent to which it leads.
    open_lanes: dict[int, int | None] = {}
    for listed in versions:
        leading = [lane for lane, parent in open_lanes.items() if parent == listed.version]
        for lane in leading:
            del open_lanes[lane]
        if listed.version in lineage:
            lanes[listed.version] = 0
            continue
        lane = min(leading, default=_free_lane(open_lanes))
        lanes[listed.version] = lane
        open_lanes[lane] = listed.parent
    return lanes


def _free_lane(open_lanes: Collection[int]) -> int:
    lane = 1
    while lane in open_lanes and lane < MAX_LANES - 1:
        lane += 1
    return lane


def _path_to_parent(child: GraphNode, parent: GraphNode | None, height: int) -> str:
    """Return the path to a parent; of one that is on another page, to the lower edge."""
    if parent is None:
        return f"M{child.x} {child.y}V{height}"
    if parent.x == child.x:
        return f"M{child.x} {child.y}V{parent.y}"
    bend = parent.y - ROW_HEIGHT // 2
    return (
        f"M{child.x} {child.y}V{bend}C{child.x} {parent.y} {parent.x} {bend} {parent.x} {parent.y}"
    )
