"""Examination of the files of the newest versions, so that damage is found before a version is needed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common.policy_digest import visible_files
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import FolderDigests
from openclaw_rl.store.lineage import policies, version_files
from openclaw_rl.store.lineage.policy_names import read_heads
from openclaw_rl.types import Policy

EXAMINED_VERSIONS = 3
"""Newest versions of each policy that are examined, beside those that were found to be damaged."""
LOOKED_AT_ONCE = 64
"""Versions whose files are looked at in one iteration: of a thousand policies, all are looked at within a minute."""
FileStates = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of the last change and inode of each file of a folder."""


class FileMonitor:
    """Examines the files of a version once, and again after they changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By version: its files when they were examined.
        self._examined: dict[int, FileStates] = {}
        self._newest = _NewestVersions()
        # Versions that are looked at next.
        self._next: list[int] = []

    def trust(self, policy: Policy) -> None:
        """Count the files of a version that this process has just written as examined, also in other processes."""
        self._examined[policy.version] = _file_states(policy)
        if policy.path is not None:
            FolderDigests(self._store, Path(policy.path), policy.files).record(policy.files)

    def examine(self, policy: Policy, *, trusts_known: bool = False) -> str | None:
        """Examine the files of a version now. Return why it cannot be used, or None. Raises `ModelError`.

        `trusts_known`: see `version_files.examine_files`.
        """
        # Before: a change meanwhile is found the next time.
        self._examined[policy.version] = _file_states(policy)
        return version_files.examine_files(self._store, policy.version, trusts_known=trusts_known)

    def examine_changed(self) -> None:
        """Examine at most one of the newest versions, the newest first. Raises `ModelError`.

        Of many versions, it looks at the next `LOOKED_AT_ONCE` of them.
        """
        with self._store.read() as conn:
            if not self._next:
                self._next = self._newest.list_versions(conn)
            some = self._next[:LOOKED_AT_ONCE]
            self._next = self._next[LOOKED_AT_ONCE:]
            newest = policies.get_files(conn, some)[::-1]
            watched = newest + version_files.damaged_versions(conn)
        for policy in watched:
            if policy.path is not None and self._examined.get(policy.version) != _file_states(
                policy
            ):
                self.examine(policy, trusts_known=True)
                return


class _NewestVersions:
    """The newest versions of each policy. After the first look, only those that are new are read."""

    def __init__(self) -> None:
        self._by_policy: dict[str, list[int]] = {}
        self._seen = -1

    def list_versions(self, conn: Connection) -> list[int]:
        """Return the newest `EXAMINED_VERSIONS` of each policy and all heads, the newest first."""
        if self._seen < 0:
            newest = policies.newest_of_each(conn, EXAMINED_VERSIONS)
            for version, name in sorted(policies.names_of_versions(conn, newest).items()):
                self._add(version, name)
            self._seen = policies.next_version(conn) - 1
        for new in policies.versions_after(conn, self._seen):
            self._seen = new.version
            if new.has_folder:
                self._add(new.version, new.name)
        newest_of_each = chain.from_iterable(self._by_policy.values())
        return sorted({*newest_of_each, *read_heads(conn).values()}, reverse=True)

    def _add(self, version: int, name: str) -> None:
        known = self._by_policy.setdefault(name, [])
        known.append(version)
        del known[:-EXAMINED_VERSIONS]


def _file_states(policy: Policy) -> FileStates:
    """Return the states of the files that exist."""
    try:
        states = [(file.name, file.stat()) for file in visible_files(policy.path or "")]
    except OSError:
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in states)
