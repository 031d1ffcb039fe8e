"""Examination of the files of the newest versions, so that damage is found before a version is needed."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.common.policy_digest import visible_files
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import FolderDigests
from openclaw_rl.store.lineage import policies, version_files
from openclaw_rl.types import Policy

EXAMINED_VERSIONS = 3
"""Newest versions of each policy that are examined, beside those that were found to be damaged."""
FileStates = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of the last change and inode of each file of a folder."""


class FileMonitor:
    """Examines the files of a version once, and again after they changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By version: its files when they were examined.
        self._examined: dict[int, FileStates] = {}

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
        """Examine at most one of the newest versions, the newest first. Raises `ModelError`."""
        with self._store.read() as conn:
            newest = policies.get_many(conn, policies.newest_of_each(conn, EXAMINED_VERSIONS))[::-1]
            watched = newest + version_files.damaged_versions(conn)
        for policy in watched:
            if policy.path is not None and self._examined.get(policy.version) != _file_states(
                policy
            ):
                self.examine(policy, trusts_known=True)
                return


def _file_states(policy: Policy) -> FileStates:
    """Return the states of the files that exist."""
    try:
        states = [(file.name, file.stat()) for file in visible_files(policy.path or "")]
    except OSError:
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in states)
