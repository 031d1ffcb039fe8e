"""Policy versions: the head, the lineage, the turns that each was trained on, and the state of their files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    LargeBinary,
    Row,
    Select,
    bindparam,
    case,
    func,
    insert,
    literal,
    select,
    update,
)

from openclaw_rl.errors import IdentityMismatch, OpenClawError, StaleLease
from openclaw_rl.store import events, leases, turn_states
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    heads_of_names,
    move_head,
    read_heads,
    record_change,
)
from openclaw_rl.store.lineage.policy_paths import resolved_path, stored_path
from openclaw_rl.store.lineage.training_queue import ancestors
from openclaw_rl.store.rows import from_row, numbers_to_json, policy_from_row, to_json, to_row
from openclaw_rl.store.turns import count_rows
from openclaw_rl.types import Lease, Policy, PolicyState, Use

log = logging.getLogger("openclaw_rl.store")
SERVED_CURSOR = "served version"
"""Name of the cursor at the version that the gateway serves."""

# Versions that `newest_first` reads in one query.
_READ_AT_ONCE = 20
REMOVED_REASON = "its files were removed to save space (train.checkpoint.keep_versions)"

_get = select(t.policies).where(t.policies.c.version == bindparam("version"))
_parent = select(t.policies.c.parent).where(t.policies.c.version == bindparam("version"))
_line = ancestors(bindparam("version"), above=bindparam("above"))
# Made once: it is asked a thousand times where people have policies of their own.
_lineage = select(_line.c.version).order_by(_line.c.version.desc())
_NOTHING = literal(b"{}", LargeBinary)
_files: Select[Any] = (
    select(
        *(c for c in t.policies.c if c.name not in ("memory", "metrics")),
        _NOTHING.label("memory"),
        _NOTHING.label("metrics"),
    )
    .where(t.policies.c.version.in_(bindparam("versions", expanding=True)))
    .order_by(t.policies.c.version)
)
# As `mark_removed` writes it.
_has_removed_file = func.instr(t.policies.c.files, b":null") > 0
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
_set_files = (
    update(t.policies)
    .where(t.policies.c.version == bindparam("of"))
    .values(files=bindparam("new_files"))
)


class NewVersion(NamedTuple):
    """A version, its policy, the version it was made from and the policy of that one; whether it has a folder."""

    version: int
    name: str
    parent: int | None
    parent_name: str | None
    has_folder: bool


_parents = t.policies.alias("parents")
_newer = (
    select(
        t.policies.c.version,
        t.policies.c.name,
        t.policies.c.parent,
        _parents.c.name,
        t.policies.c.path.is_not(None),
    )
    .outerjoin(_parents, _parents.c.version == t.policies.c.parent)
    .where(t.policies.c.version > bindparam("version"))
    .order_by(t.policies.c.version)
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
    policy = get(conn, heads_of_names(conn, [name])[name])
    assert policy is not None, "heads are versions"
    return replace(policy, name=name)


def heads_of(conn: Connection, names: Iterable[str]) -> list[Policy]:
    """Return `head` of each of these policies, in their order."""
    versions = heads_of_names(conn, names)
    by_version = {policy.version: policy for policy in get_many(conn, set(versions.values()))}
    return [replace(by_version[version], name=name) for name, version in versions.items()]


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
    numbers = sorted(versions)
    found = []
    for start in range(0, len(numbers), t.VARIABLES_AT_ONCE):
        some = t.policies.c.version.in_(numbers[start : start + t.VARIABLES_AT_ONCE])
        query = select(t.policies).where(some).order_by(t.policies.c.version)
        found += [_read_policy(conn, row) for row in conn.execute(query)]
    return found


def get_files(
    conn: Connection, versions: Collection[int], *, with_removed: bool = False
) -> list[Policy]:
    """Return as `get_many`, but without metrics and memory, which take longest to read.

    `with_removed`: only those of which some file was removed.
    """
    numbers = sorted(versions)
    query = _files.where(_has_removed_file) if with_removed else _files
    found = []
    for start in range(0, len(numbers), t.VARIABLES_AT_ONCE):
        values = {"versions": numbers[start : start + t.VARIABLES_AT_ONCE]}
        found += [_read_policy(conn, row) for row in conn.execute(query, values)]
    return found


def heads_among(conn: Connection, versions: Sequence[int]) -> set[int]:
    """Return those of the versions that are heads."""
    found = set[int]()
    for start in range(0, len(versions), t.VARIABLES_AT_ONCE):
        some = t.heads.c.version.in_(versions[start : start + t.VARIABLES_AT_ONCE])
        found |= set(conn.execute(select(t.heads.c.version).where(some)).scalars())
    return found


def versions_after(conn: Connection, version: int) -> list[NewVersion]:
    """Return the versions of any state with a higher number, oldest first."""
    return [NewVersion(*row) for row in conn.execute(_newer, {"version": version})]


def names_of_versions(conn: Connection, versions: Collection[int]) -> dict[int, str]:
    """Return the name of the policy of each of the versions that exist."""
    query = select(t.policies.c.version, t.policies.c.name).where(
        t.policies.c.version.in_(list(versions))
    )
    return {row.version: row.name for row in conn.execute(query)}


def folders_of_versions(conn: Connection, versions: Collection[int]) -> list[str]:
    """Return the folders of those of the versions that have one."""
    query = select(t.policies.c.path).where(
        t.policies.c.version.in_(list(versions)), t.policies.c.path.is_not(None)
    )
    return [str(resolved_path(conn, path)) for path in conn.execute(query).scalars().all()]


def newest_first(conn: Connection) -> Iterator[Policy]:
    """Yield all versions of any state, newest first, as they are asked for."""
    below = next_version(conn)
    while below > 0:
        older = t.policies.c.version < below
        query = select(t.policies).where(older).order_by(t.policies.c.version.desc())
        rows = conn.execute(query.limit(_READ_AT_ONCE)).all()
        if not rows:
            return
        for row in rows:
            yield _read_policy(conn, row)
        below = rows[-1].version


def newest_fork(conn: Connection) -> int:
    """Return the newest version from which one of another policy was made; 0 without one."""
    child = t.policies.alias("child")
    query = select(func.max(child.c.parent)).join(
        t.policies, t.policies.c.version == child.c.parent
    )
    return int(conn.execute(query.where(child.c.name != t.policies.c.name)).scalar() or 0)


def list_all(conn: Connection) -> list[Policy]:
    """Return all versions of any state, oldest first."""
    return [
        _read_policy(conn, row)
        for row in conn.execute(select(t.policies).order_by(t.policies.c.version))
    ]


def get_parent(conn: Connection, version: int) -> int | None:
    """Return the parent of a version; None for the base and for an unknown version."""
    parent: int | None = conn.execute(_parent, {"version": version}).scalar()
    return parent


def lineage(conn: Connection, version: int, *, above: int | None = None) -> list[int]:
    """Return [`version`, its parent, ..., 0]; empty for an unknown version.

    `above`: only the versions with a higher number; the ancestors of the others are not looked at.
    """
    asked = {"version": version, "above": -1 if above is None else above}
    return list(conn.execute(_lineage, asked).scalars())


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


def is_removed(policy: Policy) -> bool:
    """Return whether the files of a version were removed to save space."""
    return bool(policy.files) and not any(policy.files.values())


def mark_removed(conn: Connection, policy: Policy, names: Collection[str]) -> None:
    """Record that these files of a version are removed, before they are: a missing file would be damage."""
    files = to_json(dict(policy.files) | dict.fromkeys(names))
    conn.execute(_set_files, {"of": policy.version, "new_files": files})


def insert_version(
    conn: Connection, policy: Policy, uses: Sequence[Use], state: PolicyState
) -> None:
    """Insert a version in `state` with its uses. Raises `ValueError` for a wrong use."""
    values = {
        name: numbers_to_json(getattr(policy, name)) for name in ("memory", "metrics", "files")
    }
    path = stored_path(conn, policy.path)
    conn.execute(_insert_policy, to_row(t.policies, policy, state=state.value, path=path, **values))
    record_change(conn)
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
