"""Who may name a version: a policy of one's own answers its owner alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from openclaw_rl.serve.auth import Caller
from openclaw_rl.serve.versions.version_manager import unknown_version
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import key_of_policy


class VersionAccess:
    """Compares the owner of a version with who asks. Which policy a version belongs to never changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[int, str] = {}

    async def check(
        self,
        version: int,
        caller: Caller,
        *,
        own_policy: str,
        newest: int,
        granted: Collection[int] = (),
    ) -> None:
        """Raise `RequestError` (404) unless the caller may name this version, as if it did not exist.

        `own_policy`: the policy that answers the request without a version; `newest`: for the message; `granted`: the
        versions of a ticket.
        """
        name = self._names.get(version)
        if name is None:
            name = await asyncio.to_thread(self._read_name, version)
        if name is None or not may_name(
            version, name, caller, own_policy=own_policy, granted=granted
        ):
            raise unknown_version(version, newest)

    async def check_grants(self, versions: Collection[int], key: str, newest: int) -> None:
        """Raise `RequestError` (404) for a version that the owner of this key may not give to a ticket."""
        for version in versions:
            name = self._names.get(version) or await asyncio.to_thread(self._read_name, version)
            if name is None or key_of_policy(name) not in (None, key):
                raise unknown_version(version, newest)

    def _read_name(self, version: int) -> str | None:
        with self._store.read() as conn:
            policy = policies.get(conn, version)
        if policy is None:
            return None
        self._names[version] = policy.name
        return policy.name


def may_name(
    version: int, name: str, caller: Caller, *, own_policy: str, granted: Collection[int] = ()
) -> bool:
    """Return whether the caller may name a version of the policy `name`."""
    if caller.is_home:
        return True
    if caller.episode is not None:
        return version in granted
    return key_of_policy(name) is None or name == own_policy
