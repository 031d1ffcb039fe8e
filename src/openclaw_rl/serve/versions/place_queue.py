"""Places on an engine that cannot hold all versions: the plan, and the order in which requests wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

# Seconds that a version waits, and that another one has had its place, before that one must leave.
MIN_STAY = 1.0


def plan_versions(
    *,
    loaded: frozenset[int],
    serving: int,
    head: int,
    in_use: Counter[int],
    idle: list[int],
    cap: int,
    others: Sequence[tuple[int, int]] = (),
    drained: Collection[int] = (),
) -> list[int]:
    """Return the versions that the engine should load, at most `cap`.

    Versions in use and the serving version stay. Then come the head, versions that requests wait for, and idle
    versions, most recently used first. At the cap, the head waits instead of the requests.
    `others`: (serving version, head) of other policies, most recently used first. They come before idle versions. What
    a policy serves stays until its head is loaded; at the cap, the policy that was not used for longest leaves.
    `drained`: versions whose requests all wait (`PlaceQueue`). They have no right to stay.
    """
    keep = [v for v in loaded if v == serving or (in_use[v] > 0 and v not in drained)]
    wanted = [head, *(v for v in in_use if in_use[v] > 0)]
    for other_serving, other_head in others:
        wanted += (
            [other_head]
            if other_head in loaded or other_serving not in loaded
            else [other_serving, other_head]
        )
    wanted += reversed(idle)
    for version in wanted:
        if version not in keep and len(keep) < cap:
            keep.append(version)
    return sorted(keep)


class PlaceQueue:
    """Versions that requests wait for, and the loaded versions that must leave their place to them.

    A version keeps its place while a reply runs on it. So that policies that always have one cannot keep another out,
    the versions that have had a place for longest take no new requests once others have waited for `MIN_STAY`. Their
    place is free when their replies have ended; their new requests wait behind the others. Times are loop times.
    """

    def __init__(self) -> None:
        # Waiting requests by version.
        self._counts: Counter[int] = Counter()
        # When the first of them began to wait.
        self._since: dict[int, float] = {}
        self._loaded_at: dict[int, float] = {}
        self.leaving: frozenset[int] = frozenset()
        """Loaded versions that take no new requests."""

    @contextmanager
    def wait_for(self, version: int, now: float) -> Iterator[None]:
        """Count a request as waiting for the block."""
        self._counts[version] += 1
        self._since.setdefault(version, now)
        try:
            yield
        finally:
            self._counts[version] -= 1
            if self._counts[version] <= 0:
                del self._counts[version], self._since[version]

    @property
    def is_empty(self) -> bool:
        return not self._counts

    def in_order(self, in_use: Counter[int]) -> Counter[int]:
        """Return the versions in use, those that have waited for longest first."""
        last = max(self._since.values(), default=0.0)
        return Counter(
            {
                version: in_use[version]
                for version in sorted(in_use, key=lambda v: self._since.get(v, last))
            }
        )

    def drained(self, in_use: Counter[int]) -> frozenset[int]:
        """Return the versions whose requests all wait, so that no reply runs on them."""
        return frozenset(
            version for version, count in self._counts.items() if count >= in_use[version]
        )

    def choose_leaving(
        self,
        in_use: Counter[int],
        *,
        loaded: Collection[int],
        keep: Collection[int],
        cap: int,
        now: float,
    ) -> bool:
        """Choose again which versions leave. Returns whether one of them takes requests again.

        `keep`: versions that never leave.
        """
        self._loaded_at = {version: self._loaded_at.get(version, now) for version in loaded}
        drained = self.drained(in_use)
        before = self.leaving
        occupied = {v for v in loaded if v in keep or (in_use[v] > 0 and v not in drained)}
        waiting = [v for v, since in self._since.items() if in_use[v] > 0 and v not in occupied]
        needed = sum(now - self._since[v] >= MIN_STAY for v in waiting) + len(occupied) - cap
        could = [v for v in occupied if v not in keep and now - self._loaded_at[v] >= MIN_STAY]
        self.leaving = frozenset(sorted(could, key=self._loaded_at.__getitem__)[: max(needed, 0)])
        return bool(before - self.leaving)
