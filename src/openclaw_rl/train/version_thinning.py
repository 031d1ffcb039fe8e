"""Removal of policy files that are no longer needed.

The store records that files are removed before they are, and keeps the row of the version. A trainer that is killed in
between, or while it removes a folder, continues at its next start.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common.policy_digest import (
    ADAPTER_CONFIG,
    TINKER_FILE,
    TRAINER_FILES,
    visible_files,
)
from openclaw_rl.settings.schema_train import TrainCheckpointConfig
from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.practice_turns import practised_versions
from openclaw_rl.store.lineage import policies, policy_marks
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, SHARED_NAME, read_heads
from openclaw_rl.train.policy_folders import folder_bytes, has_metadata, versions_on_disk
from openclaw_rl.types import Policy, PolicyState

log = logging.getLogger(__name__)
REMOVAL_DELAY = 60.0
"""Seconds from the record to the removal of weights, which an engine may be loading: for a folder of up to
`_BYTES_IN_DELAY`, and longer for a larger one."""
# Bytes that an engine reads in `REMOVAL_DELAY` from a slow disk.
_BYTES_IN_DELAY = 3e9
KEPT_FULL_OPTIMIZERS = (
    # Newest full models whose optimizer states are kept; a state is six times as large as the base.
    2
)
_DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class _ThinningBasis:
    """Heads, served version and pins: they decide which versions are kept, and may change at any time."""

    heads: Mapping[str, int]
    served: int
    pinned: frozenset[int]

    @staticmethod
    def read(conn: Connection) -> _ThinningBasis:
        return _ThinningBasis(
            heads=dict(read_heads(conn)),
            served=events.read_cursor(conn, policies.SERVED_CURSOR),
            pinned=frozenset(policy_marks.pinned_versions(conn)),
        )


class VersionThinner:
    """Removes the files that the settings do not keep. For the holder of the trainer's lease.

    A policy is looked at when its head has moved, when one of its versions was pinned, served or freed, and once a day.
    """

    def __init__(self, store: Store, root: Path, settings: TrainCheckpointConfig) -> None:
        self._store = store
        self._root = root
        self._settings = settings
        # By version: when its folder is removed, in monotonic seconds.
        self._removal_times: dict[int, float] = {}
        self._folders = _VersionFolders(root)
        # The shared parent at the last look, and its lineage.
        self._common: list[int] = []
        # The day and what decided at the last look; None: all policies are looked at next.
        self._last_look: tuple[int, _ThinningBasis] | None = None

    def look_at_all(self) -> None:
        """Look at all policies next: another process may have written or renamed versions."""
        self._last_look = None
        self._common = []
        self._folders.forget()

    def thin_versions(self, now: float) -> None:
        """Record the files that are no longer kept as removed, and remove those that may be. `now`: since the epoch."""
        looked_at, surplus = self._record_surplus(now)
        for policy, names in surplus:
            if not _is_recorded(policy, names):
                _remove_names(policy, names)
        self._remove_recorded(looked_at)

    def _record_surplus(self, now: float) -> tuple[list[int], list[tuple[Policy, set[str]]]]:
        """Record the surplus files as removed. Return the versions that were looked at, and the surplus files.

        Planning reads folders and lineages, so it is done before the transaction; it is repeated if a version was
        pinned or served, or a head moved, in between.
        """
        while True:
            with self._store.read() as conn:
                basis = _ThinningBasis.read(conn)
                if self._must_look_at_all(basis, now):
                    self.look_at_all()
                self._folders.update(conn)
                judged = self._changed_policies(basis)
                if judged is None:
                    judged = sorted({*basis.heads, *self._folders.by_policy})
                looked_at = self._folders.of(judged)
                surplus = self._surplus_files(conn, basis, now, judged)
            if not surplus:
                break
            with self._store.write() as conn:
                if _ThinningBasis.read(conn) != basis:
                    continue
                for policy, names in surplus:
                    if _is_recorded(policy, names):
                        policies.mark_removed(conn, policy, names)
            break
        self._last_look = int(now // _DAY_SECONDS), basis
        return looked_at, surplus

    def _must_look_at_all(self, basis: _ThinningBasis, now: float) -> bool:
        """Return whether more may have changed than single policies: a new day, another parent of all, other names."""
        if self._last_look is None:
            return True
        day, before = self._last_look
        return (
            day != int(now // _DAY_SECONDS)
            or before.heads.get(SHARED_NAME) != basis.heads.get(SHARED_NAME)
            or not before.heads.keys() <= basis.heads.keys()
        )

    def _changed_policies(self, basis: _ThinningBasis) -> list[str] | None:
        """Return the policies whose files may be kept otherwise than at the last look; None: any."""
        if self._last_look is None:
            return None
        _, before = self._last_look
        changed = {name for name, head in basis.heads.items() if before.heads.get(name) != head}
        freed = {before.served, basis.served} | (before.pinned ^ basis.pinned)
        names = self._folders.names
        changed |= {names[version] for version in freed if version in names}
        return sorted(changed)

    def remove_due(self) -> None:
        """Remove the folders that were recorded as removed long enough ago."""
        if any(time.monotonic() >= due for due in self._removal_times.values()):
            self._remove_recorded(())

    def _remove_recorded(self, looked_at: Collection[int]) -> None:
        """Remove the files that are recorded as removed; the folder of a whole version after `REMOVAL_DELAY`.

        `looked_at`: versions whose files may have been recorded since.
        """
        with self._store.read() as conn:
            versions = {*looked_at, *self._removal_times}
            concerned = policies.get_files(conn, versions, with_removed=True)
        for policy in concerned:
            if policies.is_removed(policy):
                self._remove_version(policy)
            else:
                removed = {name for name, digest in policy.files.items() if digest is None}
                _remove_names(policy, removed)

    def _remove_version(self, policy: Policy) -> None:
        """Remove the folder of a version whose files are recorded as removed, if it is due."""
        if policy.path is None:
            return
        if policy.version not in self._removal_times:
            delay = REMOVAL_DELAY * max(1.0, folder_bytes(policy.path) / _BYTES_IN_DELAY)
            self._removal_times[policy.version] = time.monotonic() + delay
        if time.monotonic() >= self._removal_times[policy.version]:
            shutil.rmtree(policy.path, ignore_errors=True)
            del self._removal_times[policy.version]
            self._folders.remove(policy.version)
            log.debug("version %d is no longer kept: %s was removed", policy.version, policy.path)

    def _surplus_files(
        self, conn: Connection, basis: _ThinningBasis, now: float, judged: Sequence[str]
    ) -> list[tuple[Policy, set[str]]]:
        """Return the versions of these policies whose files are no longer kept, and the names of these files.

        Versions from which others were made for policies of their own are judged when all policies are looked at.
        """
        folders = self._folders
        lineages = Lineages(conn, basis.heads, self._common)
        self._common = lineages.common
        undecided = 0 if self._last_look is None else _newest_common(basis, folders.newest_fork)
        numbers = set(folders.of(judged))
        if self._last_look is None or DEFAULT_NAME in judged:
            numbers |= folders.names.keys() & set(lineages.common)
        known = {
            policy.version: policy
            for policy in policies.get_files(conn, numbers)
            if _can_be_thinned(policy)
        }
        practised = practised_versions(conn, known)
        retained = set[int]()
        with_state = set[int]()
        for name in judged:
            if name not in basis.heads:
                continue
            lineage = lineages.of(name)
            of_policy = [
                known[version]
                for version in {*folders.by_policy.get(name, ()), *lineage}
                if version in known
            ]
            retained |= kept_versions(of_policy, lineage, self._settings, now, practised)
            with_state |= kept_states(of_policy, lineage, self._settings)
        # Versions of which all files are kept.
        retained.add(basis.served)
        whole = basis.pinned | (with_state & retained)
        decided = [
            known[version]
            for version in folders.of(judged)
            if version in known and not _is_common(known[version], undecided)
        ]
        surplus = [
            (policy, _surplus_names(policy, retained))
            for policy in decided
            if policy.version not in whole
        ]
        return [(policy, names) for policy, names in surplus if names]


class _VersionFolders:
    """The versions that have a folder. After the first look, the store says which are new."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.names: dict[int, str] = {}
        """By version with a folder: its policy."""
        self.by_policy: dict[str, list[int]] = {}
        """The versions with a folder, oldest first."""
        self.newest_fork = 0
        """The newest version from which one of another policy was made; 0 without one."""
        # The newest version that was looked at; None before the first look.
        self._newest: int | None = None

    def forget(self) -> None:
        """Read the disk at the next look."""
        self.names = {}
        self.by_policy = {}
        self._newest = None

    def update(self, conn: Connection) -> None:
        """Find the versions that are new since the last look."""
        if self._newest is None:
            self._newest = policies.next_version(conn) - 1
            self.newest_fork = policies.newest_fork(conn)
            on_disk = versions_on_disk(self._root)
            names = policies.names_of_versions(conn, on_disk)
            for version in on_disk:
                # A folder of a step in progress has no version yet.
                if version in names:
                    self._add(version, names[version])
            return
        for new in policies.versions_after(conn, self._newest):
            self._newest = new.version
            if new.parent is not None and new.parent_name != new.name:
                self.newest_fork = max(self.newest_fork, new.parent)
            if new.has_folder and new.version not in self.names:
                self._add(new.version, new.name)

    def of(self, names: Iterable[str]) -> list[int]:
        """Return the versions of these policies, oldest first."""
        return sorted(version for name in names for version in self.by_policy.get(name, ()))

    def remove(self, version: int) -> None:
        """Forget a version whose folder was removed."""
        name = self.names.pop(version, None)
        if name is not None:
            self.by_policy[name].remove(version)

    def _add(self, version: int, name: str) -> None:
        self.names[version] = name
        self.by_policy.setdefault(name, []).append(version)


def _newest_common(basis: _ThinningBasis, newest_fork: int) -> int:
    """Return the newest version of the default policy that other policies may begin at; 0 where there are no others."""
    if SHARED_NAME not in basis.heads:
        return 0
    return max(basis.heads[SHARED_NAME], newest_fork)


def _is_common(policy: Policy, newest_common: int) -> bool:
    return policy.name == DEFAULT_NAME and policy.version <= newest_common


def _surplus_names(policy: Policy, retained: Collection[int]) -> set[str]:
    """Return the names of the files that are not kept; of a version that is only retained, the weights are."""
    names = _file_names(policy)
    return names & set(TRAINER_FILES) if policy.version in retained else names


class Lineages:
    """The lineages of heads. Those of policies of one's own have all versions below the shared parent in common."""

    def __init__(
        self, conn: Connection, heads: Mapping[str, int], common: Sequence[int] = ()
    ) -> None:
        """`common`: the shared parent at an earlier time, and its ancestors."""
        self._conn = conn
        self._heads = heads
        shared = heads.get(SHARED_NAME)
        self._common = list(common)
        if shared is None:
            self._common = []
        elif self._common[:1] != [shared]:
            self._common = policies.lineage(conn, shared)

    @property
    def common(self) -> list[int]:
        """The shared parent and its ancestors, newest first; empty where all have one policy."""
        return self._common

    def of(self, name: str) -> list[int]:
        """Return the head of a policy and its ancestors, newest first."""
        head = self._heads[name]
        if not self._common:
            return policies.lineage(self._conn, head)
        shared = self._common[0]
        own = policies.lineage(self._conn, head, above=shared)
        parent = policies.get_parent(self._conn, own[-1]) if own else head
        if parent == shared:
            return own + self._common
        return policies.lineage(self._conn, head)


def kept_versions(
    versions: Collection[Policy],
    lineage: Sequence[int],
    settings: TrainCheckpointConfig,
    now: float,
    practised: Collection[int] = (),
) -> set[int]:
    """Return the versions whose weights are kept.

    These are the newest of the head's lineage and the newest of all; of older ones of the lineage the newest of each
    day (UTC); and versions that were copied from a checkpoint. Of successive steps of practice, the last one counts;
    the others are kept while they are among the newest few. So a person can go back to before a lesson was practised.
    `lineage`: the head and its ancestors, newest first. `practised`: versions that practice made.
    """
    published = [policy for policy in versions if policy.state is not PolicyState.REJECTED]
    published.sort(key=lambda policy: -policy.version)
    passing = _passing_versions(lineage, practised)
    counted = published[: settings.keep]
    counted += [
        policy
        for policy in published[settings.keep :]
        if policy.version not in passing or has_metadata(policy)
    ]
    depths = _depths_without(passing, lineage, settings.keep)
    retained = set()
    older_adapters = []
    for age, policy in enumerate(counted):
        is_full = _has_full_weights(policy)
        limit = min(settings.keep, settings.keep_versions) if is_full else settings.keep_versions
        depth = depths.get(policy.version)
        place = age if depth is None else min(age, depth)
        if place < limit or has_metadata(policy):
            retained.add(policy.version)
        elif depth is not None and not is_full:
            older_adapters.append(policy)
    return retained | _newest_of_each_day(older_adapters, settings.keep_days, now)


def _newest_of_each_day(newest_first: Iterable[Policy], keep_days: int, now: float) -> set[int]:
    """Return the newest version of each of the last days (UTC)."""
    newest: dict[int, int] = {}
    for policy in newest_first:
        day = int(policy.created_at // _DAY_SECONDS)
        if now // _DAY_SECONDS - day < keep_days:
            newest.setdefault(day, policy.version)
    return set(newest.values())


def _passing_versions(lineage: Sequence[int], practised: Collection[int]) -> set[int]:
    """Return the steps of practice that another step of practice follows."""
    passing = set()
    for after, version in pairwise(lineage):
        if after in practised and version in practised:
            passing.add(version)
    return passing


def _depths_without(
    passing: Collection[int], lineage: Sequence[int], newest: int
) -> dict[int, int]:
    """Return version -> place in the lineage, in which `passing` versions behind the newest few do not count."""
    counted = []
    for place, version in enumerate(lineage):
        if place < newest or version not in passing:
            counted.append(version)
    return {version: place for place, version in enumerate(counted)}


def _can_be_thinned(policy: Policy) -> bool:
    if policy.path is None or policies.is_removed(policy):
        return False
    return policy.state is not PolicyState.CANDIDATE


def kept_states(
    versions: Collection[Policy], lineage: Sequence[int], settings: TrainCheckpointConfig
) -> set[int]:
    """Return the versions whose optimizer state and teacher are kept: the newest of the head's lineage.

    Those of damaged versions are left as they are, so that the damage is reported and can be repaired.
    """
    newest = lineage[: settings.keep]
    newest_full = lineage[: min(settings.keep, KEPT_FULL_OPTIMIZERS)]
    return {
        policy.version
        for policy in versions
        if policy.version in (newest_full if _has_full_weights(policy) else newest)
        or policy.damage is not None
    }


def _has_full_weights(policy: Policy) -> bool:
    return not {ADAPTER_CONFIG, TINKER_FILE} & _file_names(policy)


def _file_names(policy: Policy) -> set[str]:
    """Return the names of the files that a version has; of an older openclaw-rl, those that are on the disk."""
    if policy.files:
        return {name for name, digest in policy.files.items() if digest is not None}
    try:
        return {file.name for file in visible_files(str(policy.path))}
    except OSError:
        return set()


def _is_recorded(policy: Policy, names: Collection[str]) -> bool:
    """Return whether the store records the removal. An older openclaw-rl recorded no optimizer states."""
    return bool(policy.files) or not set(names) <= set(TRAINER_FILES)


def _remove_names(policy: Policy, names: Collection[str]) -> None:
    if policy.path is None:
        return
    for name in names:
        (Path(policy.path) / name).unlink(missing_ok=True)
