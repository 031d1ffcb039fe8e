"""The files of versions on the disk: whether they match their digests, and what follows if they do not."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, bindparam, select, update

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, TRAINER_FILES, find_damage
from openclaw_rl.errors import ModelError
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import FolderDigests
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, read_heads, record_change
from openclaw_rl.types import Policy

log = logging.getLogger("openclaw_rl.store")

_set_damage = (
    update(t.policies)
    .where(t.policies.c.version == bindparam("of"))
    .values(damage=bindparam("found"))
)


def examine_files(
    store: Store, version: int, *, for_engine: bool = False, trusts_known: bool = False
) -> str | None:
    """Compare the files of a version with their digests. Return why the version cannot be used, or None.

    Damage is recorded, and if the head is damaged, it moves back to the newest sound version of its lineage. The turns
    of the versions that it leaves are trained on again. `for_engine`: leave out the optimizer state of full weights,
    which is several times larger than the weights. `trusts_known`: do not read large files again that have not changed
    since they were hashed, such as full weights; whoever loads them compares what it reads. Raises `ModelError` if the
    files cannot be compared now.
    """
    with store.read() as conn:
        policy = policies.get(conn, version)
    if policy is None or policy.path is None:
        return None
    digests = FolderDigests(store, Path(policy.path), policy.files)
    skip = set[str]()
    if for_engine and ADAPTER_CONFIG not in policy.files:
        skip.update(TRAINER_FILES)
    if trusts_known:
        known = digests.read_known()
        skip.update(name for name, digest in known.items() if digest == policy.files[name])
    damage = (
        None if policies.is_removed(policy) else _find_damage(policy, policy.path, skip, digests)
    )
    # Files that were not read may be those that are damaged.
    if damage is None and skip:
        damage = policy.damage
    if damage == policy.damage:
        return policies.REMOVED_REASON if policies.is_removed(policy) else damage
    return _store_damage(store, policy, damage)


def _find_damage(
    policy: Policy, folder: str, skip: Collection[str], digests: FolderDigests
) -> str | None:
    """Compare the files, but for those in `skip`. The digests of files without damage are kept as known."""
    damage = _compare_files(policy, folder, skip)
    if damage is None:
        compared = {name: digest for name, digest in policy.files.items() if name not in skip}
        digests.record(compared)
    return damage


def _store_damage(store: Store, policy: Policy, damage: str | None) -> str | None:
    """Record the damage that was found, or its absence. Return why the version cannot be used now, or None."""
    with store.write() as conn:
        current = policies.get(conn, policy.version)
        assert current is not None, "versions are never deleted"
        if policies.is_removed(current):
            return policies.REMOVED_REASON
        # Some were removed during the comparison.
        if current.files != policy.files:
            return current.damage
        _record_damage(conn, current, damage, time.time())
    return damage


def _compare_files(policy: Policy, folder: str, skip: Collection[str]) -> str | None:
    """Return how the files of a version differ from their digests, or None. Raises `ModelError`."""
    try:
        return find_damage(folder, policy.digest, policy.files, skip=skip)
    except OSError as error:
        cure = "Restore access to them, or roll back to the base (`openclaw-rl rollback 0`)"
        raise ModelError(
            f"the files of version {policy.version} cannot be read: {error}. {cure}"
        ) from error


def _record_damage(conn: Connection, policy: Policy, damage: str | None, at: float) -> None:
    conn.execute(_set_damage, {"of": policy.version, "found": damage})
    record_change(conn)
    if damage is None:
        return
    log.error("version %d is damaged: %s", policy.version, damage)
    events.append(conn, "policy.damaged", str(policy.version), {"damage": damage}, at)
    for name, current in read_heads(conn).items():
        sound = next(
            version
            for version in policies.lineage(conn, current)
            if _is_usable(policies.get(conn, version))
        )
        if sound == current:
            continue
        of = "" if name == DEFAULT_NAME else f" of the policy {name!r}"
        log.error("the head%s moves back from version %d to version %d", of, current, sound)
        reason = f"version {policy.version} is damaged: {damage}"
        head_moves.roll_back(
            conn, to=sound, reason=reason, code=ReasonCode.DAMAGED, at=at, name=name
        )


def _is_usable(policy: Policy | None) -> bool:
    return policy is not None and policy.damage is None and not policies.is_removed(policy)


def rollback_targets(conn: Connection, name: str = DEFAULT_NAME) -> list[int]:
    """Return the ancestors of a policy's head that can become its head again, newest first."""
    head_ancestors = policies.lineage(conn, policies.head(conn, name).version)[1:]
    usable = filter(_is_usable, policies.get_many(conn, head_ancestors))
    return sorted((policy.version for policy in usable), reverse=True)


def damaged_versions(conn: Connection) -> list[Policy]:
    """Return the versions whose files are damaged, oldest first, without those whose files were removed since."""
    damaged = conn.execute(
        select(t.policies.c.version).where(t.policies.c.damage.is_not(None))
    ).scalars()
    return [
        policy
        for policy in policies.get_many(conn, damaged.all())
        if not policies.is_removed(policy)
    ]


def damage_reports(conn: Connection) -> list[str]:
    """Return a line for each damaged version: what is wrong, what was done, and the cure."""
    return [
        f"version {policy.version} is damaged: {policy.damage}. It is not served, and not trained from; "
        f"version {policies.head(conn).version} is the head. Restore {policy.path} from a backup if you need version "
        f"{policy.version}"
        for policy in damaged_versions(conn)
    ]
