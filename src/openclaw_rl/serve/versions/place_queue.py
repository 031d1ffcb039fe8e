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
    used = _used(in_use)
    running = set(used).difference(drained)
    planned = [version for version in loaded if version == serving or version in running]
    wanted = [head, *used, *_versions_of_others(others, loaded), *reversed(idle)]
    for version in wanted:
        if version not in planned and len(planned) < cap:
            planned.append(version)
    return sorted(planned)


def _used(in_use: Counter[int]) -> list[int]:
    return [version for version, count in in_use.items() if count > 0]


def _versions_of_others(
    others: Sequence[tuple[int, int]], loaded: Collection[int]
) -> Iterator[int]:
    for serving, head in others:
        if serving in loaded and head not in loaded:
            yield serving
        yield head


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
        versions = sorted(in_use, key=lambda version: self._since.get(version, last))
        return Counter({version: in_use[version] for version in versions})

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
        used = set(_used(in_use))
        running = used - self.drained(in_use)
        occupied = running.union(keep).intersection(loaded)
        waiting = used.intersection(self._since) - occupied
        is_overdue = [now - self._since[version] >= MIN_STAY for version in waiting]
        needed_places = sum(is_overdue) + len(occupied) - cap
        movable = occupied.difference(keep)
        stayed = [version for version in movable if now - self._loaded_at[version] >= MIN_STAY]
        longest_first = sorted(stayed, key=self._loaded_at.__getitem__)
        before = self.leaving
        self.leaving = frozenset(longest_first[: max(needed_places, 0)])
        return bool(before - self.leaving)
