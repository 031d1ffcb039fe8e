"""Policy versions: the head, the lineage, the turns that each was trained on, and the state of their files."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, func, insert, select, update

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, TRAINER_FILES, find_damage
from openclaw_rl.errors import IdentityMismatch, ModelError, OpenClawError, StaleLease
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import events, leases, turn_states
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import FolderDigests
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import lost_uses, policy_marks
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    SHARED_NAME,
    head_version,
    move_head,
    read_heads,
)
from openclaw_rl.store.lineage.policy_paths import resolved_path, stored_path
from openclaw_rl.store.lineage.training_queue import ancestors
from openclaw_rl.store.rows import from_row, numbers_to_json, policy_from_row, to_json, to_row
from openclaw_rl.store.turns import count_rows
from openclaw_rl.types import Lease, Policy, PolicyState, Use

log = logging.getLogger("openclaw_rl.store")
SERVED_CURSOR = "served version"
"""Name of the cursor at the version that the gateway serves."""

REMOVED_REASON = "its files were removed to save space (train.checkpoint.keep_versions)"

_get = select(t.policies).where(t.policies.c.version == bindparam("version"))
_insert_policy = insert(t.policies)
_insert_use = insert(t.uses)
_count_use = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("used"))
    .values(
        uses=t.turns.c.uses + 1,
        lost=t.turns.c.lost + case((t.turns.c.owner == bindparam("of_policy"), 0), else_=1),
    )
)
_mark_rolled_back = (
    update(t.policies)
    .where(t.policies.c.version.in_(bindparam("versions", expanding=True)))
    .values(
        state=PolicyState.ROLLED_BACK.value,
        reason=bindparam("new_reason"),
        reason_code=bindparam("new_code"),
    )
)
_mark_live = (
    update(t.policies)
    .where(t.policies.c.version.in_(bindparam("versions", expanding=True)))
    .values(state=PolicyState.LIVE.value, reason=None, reason_code=None)
)
_set_files = (
    update(t.policies)
    .where(t.policies.c.version == bindparam("of"))
    .values(files=bindparam("new_files"))
)
_set_damage = (
    update(t.policies)
    .where(t.policies.c.version == bindparam("of"))
    .values(damage=bindparam("found"))
)


def ensure_root(conn: Connection, *, base: str, identity: str, at: float) -> Policy:
    """Return version 0, the base, created on the first call. Raises `IdentityMismatch` for another model's store."""
    root = get(conn, 0)
    if root is None:
        root = Policy(
            version=0,
            parent=None,
            state=PolicyState.LIVE,
            path=None,
            digest="",
            base=base,
            identity=identity,
            created_at=at,
        )
        insert_version(conn, root, (), PolicyState.LIVE)
        move_head(conn, DEFAULT_NAME, 0)
    if root.identity != identity:
        raise IdentityMismatch(
            f"this store belongs to {root.base} (identity {root.identity[:12]}), but the model is now {base} "
            f"(identity {identity[:12]}): tokenizer, template or weights differ, so its adapters do not fit. "
            "Set model.path back, or choose another home for the new model (--home)."
        )
    return root


def head(conn: Connection, name: str = DEFAULT_NAME) -> Policy:
    """Return the version that answers new requests to a policy, with the policy's name.

    It may be the shared parent, which is another policy's version. Raises `StoreError` before `ensure_root`.
    """
    policy = get(conn, head_version(read_heads(conn), name))
    assert policy is not None, "heads are versions"
    return replace(policy, name=name)


def get(conn: Connection, version: int) -> Policy | None:
    row = conn.execute(_get, {"version": version}).one_or_none()
    return None if row is None else _read_policy(conn, row)


def require_version(conn: Connection, version: int) -> Policy:
    """Return a version of any state. Raises `OpenClawError` if there is no such version."""
    policy = get(conn, version)
    if policy is not None:
        return policy
    newest = next_version(conn) - 1
    there = f"there are 0 to {newest}" if newest else "there is 0 alone"
    raise OpenClawError(
        f"no policy version {version}; {there}. `openclaw-rl policies list` shows the newest"
    )


def get_many(conn: Connection, versions: Collection[int]) -> list[Policy]:
    """Return those of the versions that exist, oldest first."""
    query = (
        select(t.policies)
        .where(t.policies.c.version.in_(list(versions)))
        .order_by(t.policies.c.version)
    )
    return [_read_policy(conn, row) for row in conn.execute(query)]


def names_of_versions(conn: Connection, versions: Collection[int]) -> dict[int, str]:
    """Return the name of the policy of each of the versions that exist."""
    query = select(t.policies.c.version, t.policies.c.name).where(
        t.policies.c.version.in_(list(versions))
    )
    return {row.version: row.name for row in conn.execute(query)}


def list_all(conn: Connection) -> list[Policy]:
    """Return all versions of any state, oldest first."""
    return [
        _read_policy(conn, row)
        for row in conn.execute(select(t.policies).order_by(t.policies.c.version))
    ]


def get_parent(conn: Connection, version: int) -> int | None:
    """Return the parent of a version; None for the base and for an unknown version."""
    parent: int | None = conn.execute(
        select(t.policies.c.parent).where(t.policies.c.version == version)
    ).scalar()
    return parent


def lineage(conn: Connection, version: int, *, above: int | None = None) -> list[int]:
    """Return [`version`, its parent, ..., 0]; empty for an unknown version.

    `above`: only the versions with a higher number; the ancestors of the others are not looked at.
    """
    line = ancestors(version, above=above)
    return list(conn.execute(select(line.c.version).order_by(line.c.version.desc())).scalars())


def newest_of_each(conn: Connection, count: int) -> list[int]:
    """Return the newest `count` live versions of each policy, and all heads."""
    age = (
        func.row_number()
        .over(partition_by=t.policies.c.name, order_by=t.policies.c.version.desc())
        .label("age")
    )
    live = (
        select(t.policies.c.version, age)
        .where(t.policies.c.state == PolicyState.LIVE.value)
        .subquery()
    )
    newest = conn.execute(select(live.c.version).where(live.c.age <= count)).scalars()
    return sorted({*newest, *read_heads(conn).values()})


def next_version(conn: Connection) -> int:
    """Return the lowest number above all versions, including rejected ones."""
    return (
        int(conn.execute(select(func.coalesce(func.max(t.policies.c.version), 0))).scalar_one()) + 1
    )


def count_by_state(conn: Connection) -> dict[PolicyState, int]:
    """Return the number of versions in each state that has any."""
    return {PolicyState(state): n for state, n in count_rows(conn, t.policies.c.state).items()}


def uses_of_version(conn: Connection, version: int) -> list[Use]:
    """Return the uses of turns by `version`, in the order of its batch."""
    u = t.uses.c
    rows = conn.execute(
        select(u.policy, u.turn, u.number).where(u.policy == version).order_by(u.place, u.turn)
    )
    return [from_row(Use, row) for row in rows]


def versions_with_turn(conn: Connection, turn: str) -> list[int]:
    """Return the versions that used the turn, of any state, oldest first."""
    return list(
        conn.execute(
            select(t.uses.c.policy).where(t.uses.c.turn == turn).order_by(t.uses.c.policy)
        ).scalars()
    )


def publish(
    conn: Connection,
    lease: Lease,
    policy: Policy,
    uses: Sequence[Use],
    now: float,
    *,
    lease_now: float | None = None,
) -> None:
    """Insert the policy as LIVE with its uses, move its head to it, and append the event "policy.live".

    `now`: seconds since the epoch; `lease_now`: by the clock of the lease, default `now`.

    Raises `StaleLease` if the lease is lost or expired, if the head is no longer the policy's parent, or if one of the
    turns was taken back since; `ValueError` for a use of another policy, or a use number that is not the turn's next.
    """
    leases.check(conn, lease, now if lease_now is None else lease_now)
    current = head(conn, policy.name).version
    if current != policy.parent:
        raise StaleLease(
            f"policy {policy.version} has parent {policy.parent}, but the head is now {current}."
        )
    undone = turn_states.taken_back(conn, [use.turn for use in uses])
    if undone:
        raise StaleLease(
            f"turns of policy {policy.version} were taken back during the step: {', '.join(undone)}"
        )
    insert_version(conn, policy, uses, PolicyState.LIVE)
    move_head(conn, policy.name, policy.version)
    data = {"parent": policy.parent, "turns": len(uses)}
    events.append(conn, "policy.live", str(policy.version), data, now)


def reject(
    conn: Connection,
    lease: Lease,
    policy: Policy,
    uses: Sequence[Use],
    now: float,
    *,
    lease_now: float | None = None,
) -> None:
    """Insert the candidate as REJECTED with its reason and uses, and append "policy.rejected"; the head stays.

    Arguments and errors are those of `publish`, except for a moved head.
    """
    leases.check(conn, lease, now if lease_now is None else lease_now)
    insert_version(conn, policy, uses, PolicyState.REJECTED)
    data = {"reason": policy.reason, "code": policy.reason_code}
    events.append(conn, "policy.rejected", str(policy.version), data, now)


def roll_back(
    conn: Connection,
    *,
    to: int,
    reason: str,
    code: ReasonCode = ReasonCode.ROLLED_BACK,
    at: float,
    automatic: bool = False,
    name: str = DEFAULT_NAME,
) -> Policy:
    """Move a policy's head back to `to`, and append "policy.rolled_back".

    The versions up to the old head that are on no head's lineage any more become ROLLED_BACK. `automatic`: the
    satisfaction watch asked for it. Raises `ValueError` if `to` is not an ancestor of the head.
    """
    old = head(conn, name).version
    undone = lineage(conn, old, above=to)
    if not undone or get_parent(conn, undone[-1]) != to:
        ancestors_of_head = lineage(conn, old)[1:]
        raise ValueError(
            f"roll back to {to}: expected an ancestor of the head {old}, one of {ancestors_of_head}"
        )
    _leave_versions(conn, name, old, to, undone, Reason(code, reason), automatic, at)
    data = {"versions": undone, "reason": reason, "code": code, "automatic": automatic}
    events.append(conn, "policy.rolled_back", str(to), data, at)
    target = get(conn, to)
    assert target is not None, f"version {to} is in the lineage"
    return target


def promote(conn: Connection, *, to: int, reason: str, at: float) -> None:
    """Make `to`, which is not on the lineage of its policy's head, that head; event "policy.promoted".

    `to` and its ancestors become LIVE. The versions that leave the head's lineage become ROLLED_BACK with `reason`.
    Raises `ValueError` if `to` is unknown or on the head's lineage.
    """
    target = get(conn, to)
    new_lineage = lineage(conn, to)
    name = DEFAULT_NAME if target is None else target.name
    old_lineage = lineage(conn, head(conn, name).version)
    if target is None or to in old_lineage:
        raise ValueError(
            f"promote {to}: expected a version that is not on the lineage of the head {old_lineage[0]}"
        )
    left = [version for version in old_lineage if version not in new_lineage]
    _leave_versions(
        conn, name, old_lineage[0], to, left, Reason(ReasonCode.PROMOTED, reason), False, at
    )
    joined = [version for version in new_lineage if version not in old_lineage]
    conn.execute(_mark_live, {"versions": joined})
    lost_uses.regain_uses(conn, name, joined)
    events.append(conn, "policy.promoted", str(to), {"versions": left, "reason": reason}, at)


def _leave_versions(
    conn: Connection,
    name: str,
    old: int,
    to: int,
    left: list[int],
    reason: Reason,
    automatic: bool,
    at: float,
) -> None:
    """Move the head from `old` to `to`, and mark the versions that are on no lineage any more as rolled back.

    The weights of `to` do not follow the lessons that were learned by those versions. A canary of the policy ends: it
    was compared with `old`.
    """
    move_head(conn, name, to)
    policy_marks.end_canary(conn, name)
    lost_uses.lose_uses(conn, name, left)
    abandoned = sorted(set(left) - _shared_lineage(conn, above=min(left, default=0) - 1))
    conn.execute(
        _mark_rolled_back,
        {"versions": abandoned, "new_reason": reason.detail, "new_code": reason.code},
    )
    lessons.unlearn_versions(conn, abandoned, at=at)
    policy_marks.record_head_move(
        conn, name, old=old, to=to, left=left, reason=reason.detail, automatic=automatic, at=at
    )


def _shared_lineage(conn: Connection, *, above: int) -> set[int]:
    """Return the versions above this number that the policies of one's own have in common.

    No other version is on the lineage of two heads: every policy of one's own begins at the shared parent.
    """
    heads = read_heads(conn)
    if SHARED_NAME not in heads:
        return set()
    return set(lineage(conn, heads[SHARED_NAME], above=above))


# ------------------------------------------------------------------------------- files on the disk


def is_removed(policy: Policy) -> bool:
    """Return whether the files of a version were removed to save space."""
    return bool(policy.files) and not any(policy.files.values())


def mark_removed(conn: Connection, policy: Policy, names: Collection[str]) -> None:
    """Record that these files of a version are removed, before they are: a missing file would be damage."""
    files = to_json(dict(policy.files) | dict.fromkeys(names))
    conn.execute(_set_files, {"of": policy.version, "new_files": files})


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
        policy = get(conn, version)
    if policy is None or policy.path is None:
        return None
    digests = FolderDigests(store, Path(policy.path), policy.files)
    skip = set[str]()
    if for_engine and ADAPTER_CONFIG not in policy.files:
        skip.update(TRAINER_FILES)
    if trusts_known:
        known = digests.read_known()
        skip.update(name for name, digest in known.items() if digest == policy.files[name])
    damage = None if is_removed(policy) else _find_damage(policy, policy.path, skip, digests)
    # Files that were not read may be those that are damaged.
    if damage is None and skip:
        damage = policy.damage
    if damage == policy.damage:
        return REMOVED_REASON if is_removed(policy) else damage
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
        current = get(conn, policy.version)
        assert current is not None, "versions are never deleted"
        if is_removed(current):
            return REMOVED_REASON
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
    if damage is None:
        return
    log.error("version %d is damaged: %s", policy.version, damage)
    events.append(conn, "policy.damaged", str(policy.version), {"damage": damage}, at)
    for name, current in read_heads(conn).items():
        sound = next(
            version for version in lineage(conn, current) if _is_usable(get(conn, version))
        )
        if sound == current:
            continue
        of = "" if name == DEFAULT_NAME else f" of the policy {name!r}"
        log.error("the head%s moves back from version %d to version %d", of, current, sound)
        reason = f"version {policy.version} is damaged: {damage}"
        roll_back(conn, to=sound, reason=reason, code=ReasonCode.DAMAGED, at=at, name=name)


def _is_usable(policy: Policy | None) -> bool:
    return policy is not None and policy.damage is None and not is_removed(policy)


def rollback_targets(conn: Connection, name: str = DEFAULT_NAME) -> list[int]:
    """Return the ancestors of a policy's head that can become its head again, newest first."""
    head_ancestors = set(lineage(conn, head(conn, name).version)[1:])
    return [
        policy.version
        for policy in reversed(list_all(conn))
        if policy.version in head_ancestors and _is_usable(policy)
    ]


def damaged_versions(conn: Connection) -> list[Policy]:
    """Return the versions whose files are damaged, oldest first, without those whose files were removed since."""
    damaged = conn.execute(
        select(t.policies.c.version).where(t.policies.c.damage.is_not(None))
    ).scalars()
    return [policy for policy in get_many(conn, damaged.all()) if not is_removed(policy)]


def damage_reports(conn: Connection) -> list[str]:
    """Return a line for each damaged version: what is wrong, what was done, and the cure."""
    return [
        f"version {policy.version} is damaged: {policy.damage}. It is not served, and not trained from; version "
        f"{head(conn).version} is the head. Restore {policy.path} from a backup if you need version {policy.version}"
        for policy in damaged_versions(conn)
    ]


def insert_version(
    conn: Connection, policy: Policy, uses: Sequence[Use], state: PolicyState
) -> None:
    """Insert a version in `state` with its uses. Raises `ValueError` for a wrong use."""
    values = {
        name: numbers_to_json(getattr(policy, name)) for name in ("memory", "metrics", "files")
    }
    path = stored_path(conn, policy.path)
    conn.execute(_insert_policy, to_row(t.policies, policy, state=state.value, path=path, **values))
    if not uses:
        return
    _check_uses(conn, policy, uses)
    conn.execute(_insert_use, [to_row(t.uses, use, place=place) for place, use in enumerate(uses)])
    # Only a published version counts, for the turns of its own policy.
    of_policy = policy.name if state is PolicyState.LIVE else ""
    conn.execute(_count_use, [{"used": use.turn, "of_policy": of_policy} for use in uses])


def _check_uses(conn: Connection, policy: Policy, uses: Sequence[Use]) -> None:
    ids = [u.turn for u in uses]
    rows = conn.execute(select(t.turns.c.id, t.turns.c.uses).where(t.turns.c.id.in_(ids)))
    next_numbers = {row.id: row.uses + 1 for row in rows}
    for use in uses:
        expected = next_numbers.get(use.turn)
        if use.policy != policy.version or use.number != expected:
            raise ValueError(
                f"use of turn {use.turn}: expected policy {policy.version} and number {expected}, "
                f"got policy {use.policy} and number {use.number}"
            )


def _read_policy(conn: Connection, row: Row[Any]) -> Policy:
    policy = policy_from_row(row)
    return replace(policy, path=resolved_path(conn, policy.path))
