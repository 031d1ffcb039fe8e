"""Policies of one's own: which policy a request belongs to, and the head of each policy (`policy.per`).

A policy is named "default", or after who asks: "agent:3f2a:coder", "user:3f2a:ann", "key:3f2a". 3f2a is the id of the
API key, because any client can name an agent or a user. Without a version of its own a policy is answered by the shared
parent: the version that was the head when `policy.per` was first set.

The store keeps `policy.per` as the system was last started with it, so that every command on the home uses that value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from openclaw_rl.errors import ConfigError, OpenClawError, StoreError
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage import lost_uses
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.types import Capture, Kind, Request, TurnState

PolicyOwner = Literal["all", "agent", "user", "key"]
"""Who has a policy of its own; "all": one policy for all."""
DEFAULT_NAME = "default"
"""Name of the policy of requests without an owner, and of the only one with `policy.per: all`."""
SHARED_NAME = lost_uses.SHARED_HEAD
"""Name of the head that is the parent of every policy of one's own. Only an undo or damage moves it."""
_OWNER_KEY = "policy_owner"


def read_owner(conn: Connection) -> PolicyOwner | None:
    """Return who has a policy of its own on this home; None if no gateway or trainer has ever started on it."""
    raw = conn.scalar(select(t.meta.c.value).where(t.meta.c.key == _OWNER_KEY))
    owner: PolicyOwner | None = None if raw is None else from_json(raw)
    return owner


def stored_owner(conn: Connection) -> PolicyOwner:
    """Return who has a policy of its own on this home. Before the first start, nobody has."""
    return read_owner(conn) or "all"


def require_owner(conn: Connection, setting: PolicyOwner | None) -> PolicyOwner:
    """Return who has a policy of its own on this home; before the first start, the setting.

    `setting`: None if it was not given. Raises `ConfigError` if it disagrees.
    """
    stored = read_owner(conn) or setting or "all"
    if setting not in (None, stored):
        raise ConfigError(
            f"policy.per is {setting}, but the system on this home was last started with {stored}. Leave policy.per "
            f"out, or start the system with {setting} first (`openclaw-rl up --set policy.per={setting}`)"
        )
    return stored


def record_owner(conn: Connection, owner: PolicyOwner) -> None:
    """Store who has a policy of its own from now on. If that changes, each turn trains the policy that has it then."""
    before = stored_owner(conn)
    row = {"key": _OWNER_KEY, "value": to_json(owner)}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))
    if before != owner:
        _assign_owners(conn, owner)


def policy_name(per: PolicyOwner, *, agent: str, user: str, key: str) -> str:
    """Return the name of the policy that a request belongs to. `key`: id of the API key, also of an episode's owner."""
    owner = {"all": "", "agent": agent, "user": user, "key": key}[per]
    if per in _NAMED_BY_CLIENTS and owner:
        owner = f"{key}:{owner}"
    return f"{per}:{owner}" if owner else DEFAULT_NAME


def key_of_policy(name: str) -> str | None:
    """Return the id of the API key to which the policy `name` belongs; None if it belongs to nobody in particular."""
    if name in (DEFAULT_NAME, SHARED_NAME):
        return None
    return name.split(":", 2)[1]


_key_of_episode = (
    select(t.episodes.c.scope)
    .where(t.episodes.c.id == t.exchanges.c.episode)
    .correlate(t.exchanges)
)
IMPORT_SCOPE = "import"
"""A scope of no API key, so that imported turns are never linked with live conversations."""
_MAIN_KEY = "main_key"
_main_key = select(cast(t.meta.c.value, Text)).where(t.meta.c.key == _MAIN_KEY)
# An episode has a scope of its own. Imported turns belong to the home's first key, once a gateway has started with it.
_key_of_exchange = case(
    (
        t.exchanges.c.scope == IMPORT_SCOPE,
        func.coalesce(_main_key.scalar_subquery(), IMPORT_SCOPE),
    ),
    else_=func.coalesce(_key_of_episode.scalar_subquery(), t.exchanges.c.scope),
)
_OWNERS: dict[str, ColumnElement[str]] = {
    "agent": t.exchanges.c.agent,
    "user": t.exchanges.c.user,
    "key": _key_of_exchange,
}
_NAMED_BY_CLIENTS = frozenset({"agent", "user"})
"""Owners that a request names as it likes: the key is part of who they are."""
_MAX_NAMED = 20


class OwnerFilter(NamedTuple):
    """Selects the turns that train the policy `name`. `per`: who has a policy of its own."""

    per: PolicyOwner
    name: str

    @property
    def may_be_several(self) -> bool:
        """Whether turns of several people may train the policy."""
        return self.per in ("all", "agent")

    def condition(self) -> ColumnElement[bool]:
        """Condition on a row of `turns`."""
        return t.turns.c.owner == self.name


def owner_filter(per: PolicyOwner, name: str) -> OwnerFilter:
    """Return which turns train the policy `name`."""
    return OwnerFilter(per, name)


def stored_user(request: Request) -> str:
    """Return the user of a request as the store keeps it: of a redacted one, nobody."""
    return "" if request.capture is Capture.REDACTED else request.user


def names_of_requests(conn: Connection, requests: Sequence[Request]) -> list[str]:
    """Return the policy that each of the requests trains."""
    per = stored_owner(conn)
    if per == "all":
        return [DEFAULT_NAME] * len(requests)
    keys = _keys_of_requests(conn, requests)
    return [
        policy_name(per, agent=request.agent, user=stored_user(request), key=key)
        for request, key in zip(requests, keys, strict=True)
    ]


def _keys_of_requests(conn: Connection, requests: Sequence[Request]) -> list[str]:
    """Return the id of the API key to which each request belongs, as `_key_of_exchange` does."""
    key_of_scope = {IMPORT_SCOPE: conn.execute(_main_key).scalar() or IMPORT_SCOPE}
    scopes = _scopes_of_episodes(conn, {request.episode for request in requests})
    return [
        scopes.get(request.episode, key_of_scope.get(request.scope, request.scope))
        for request in requests
    ]


def _scopes_of_episodes(conn: Connection, episodes: set[str | None]) -> dict[str | None, str]:
    known = episodes - {None}
    if not known:
        return {}
    query = select(t.episodes.c.id, t.episodes.c.scope).where(t.episodes.c.id.in_(known))
    return {row.id: row.scope for row in conn.execute(query)}


def _assign_owners(conn: Connection, per: PolicyOwner, *conditions: ColumnElement[bool]) -> None:
    """Store the policy that each turn with these conditions trains, and count the uses by its lineage again."""
    owner: ColumnElement[str] = literal(DEFAULT_NAME)
    if per != "all":
        column = _OWNERS[per]
        named = column if per not in _NAMED_BY_CLIENTS else _key_of_exchange + ":" + column
        owner = case((column == "", DEFAULT_NAME), else_=literal(f"{per}:") + named)
        owner = (
            select(owner)
            .where(t.exchanges.c.seq == t.turns.c.seq)
            .correlate(t.turns)
            .scalar_subquery()
        )
    conn.execute(update(t.turns).where(*conditions).values(owner=owner))
    source = t.turns.alias("source")
    of_source = (
        select(source.c.owner)
        .join(t.practice_turns, t.practice_turns.c.source == source.c.id)
        .where(t.practice_turns.c.turn == t.turns.c.id)
        .correlate(t.turns)
    )
    is_practice = t.equals_literal(t.turns.c.kind, Kind.PRACTICE)
    conn.execute(
        update(t.turns)
        .where(is_practice, of_source.exists())
        .values(owner=of_source.scalar_subquery())
    )
    lost_uses.recount_all(conn)


def is_owned(per: PolicyOwner, name: str) -> bool:
    """Return whether the policy `name` is trained under this setting."""
    return name == DEFAULT_NAME or (per != "all" and name.startswith(f"{per}:"))


class WaitingPolicy(NamedTuple):
    """A policy that may have turns to train on."""

    name: str
    oldest: int
    """Number of the oldest turn that waits; 0 without one."""
    turns: int
    """How many wait, at least as many as a step could be taken on now."""
    is_due: bool
    """Whether a step may be due."""


def waiting_names(conn: Connection, per: PolicyOwner) -> list[str]:
    """Return the names of `waiting_policies`."""
    return [policy.name for policy in waiting_policies(conn, per)]


def waiting_policies(
    conn: Connection, per: PolicyOwner, *, full: int = 1, overdue_before: float = 0.0
) -> list[WaitingPolicy]:
    """Return the policies that may have turns to train on.

    First those with batches of an undo; then those with judged turns that no version used, or that lost all their uses,
    because the versions were rolled back or rejected. Of these, a policy is due with at least `full` such turns, with
    one that lost its uses, or with one that was admitted before `overdue_before` (seconds since the epoch). Those that
    are due come first, so that nobody whose batch is due waits for all others to be asked. The one with the oldest turn
    comes before the others.
    """
    if per == "all":
        return [WaitingPolicy(DEFAULT_NAME, 0, 0, True)]
    again = _waiting_turns(conn, _LOST_BY_OWNER)
    oldest = {name: first for name, (first, _) in again.items()}
    counts = {name: count for name, (_, count) in again.items()}
    for name, (first, count) in _waiting_turns(conn, _UNUSED_BY_OWNER).items():
        oldest[name] = min(first, oldest.get(name, first))
        counts[name] = counts.get(name, 0) + count
    overdue = _newest_before(conn, overdue_before)
    waiting = []
    for name, first in oldest.items():
        is_due = counts[name] >= full or name in again or first <= overdue
        waiting.append(WaitingPolicy(name, first, counts[name], is_due))
    waiting.sort(key=lambda policy: (not policy.is_due, policy.oldest))
    batches = select(t.retraining.c.name).order_by(t.retraining.c.seq)
    names = dict.fromkeys(name for name in conn.execute(batches).scalars() if is_owned(per, name))
    undone = [WaitingPolicy(name, 0, 0, True) for name in names]
    listed = undone + [policy for policy in waiting if policy.name not in names]
    return listed or [WaitingPolicy(DEFAULT_NAME, 0, 0, True)]


SIGNALS = (1, 2, 3, 4)
"""Values of `turns.signal` with which a method may train. Queries name one each, as the indexes begin with it."""
IS_CLAIMABLE = and_(
    t.equals_literal(t.turns.c.state, TurnState.JUDGED),
    t.turns.c.untrainable.is_(None),
    t.equals_literal(t.turns.c.kind, Kind.MAIN),
)
HAS_LOST_USE = t.turns.c.lost > literal_column("0", Integer)
# As a difference: of an equality, SQLite concludes that there are uses, and reads all turns that have any.
HAS_LOST_ALL_USES = t.turns.c.uses - t.turns.c.lost == literal_column("0", Integer)
"""Conditions of the partial indexes of `schema.turns`, which SQLite uses only for the same words."""


def _waiting_turns(
    conn: Connection, queries: Sequence[Select[str, int, int]]
) -> dict[str, tuple[int, int]]:
    """Return the number of the oldest claimable turn that the queries find, and how many there are, by policy."""
    found: dict[str, tuple[int, int]] = {}
    for query in queries:
        # All at once: there may be a thousand rows, and one by one takes five times as long.
        for owner, seq, count in conn.execute(query).all():
            oldest, before = found.get(owner, (seq, 0))
            found[owner] = min(seq, oldest), before + count
    return found


def _newest_before(conn: Connection, at: float) -> int:
    """Return the number of the newest exchange that was admitted before this time; 0 without one."""
    admitted = t.exchanges.c.admitted_at
    query = select(t.exchanges.c.seq).where(admitted < at).order_by(admitted.desc()).limit(1)
    return int(conn.execute(query).scalar() or 0)


def _oldest_by_owner(*conditions: ColumnElement[bool]) -> list[Select[str, int, int]]:
    """Return a query for each signal: each policy, the number of the oldest of its turns that fit, and how many do."""
    owner = t.turns.c.owner
    query = select(owner, func.min(t.turns.c.seq), func.count()).group_by(owner)
    return [query.where(IS_CLAIMABLE, t.turns.c.signal == n, *conditions) for n in SIGNALS]


_UNUSED_BY_OWNER = _oldest_by_owner(t.turns.c.uses == 0)
_LOST_BY_OWNER = _oldest_by_owner(HAS_LOST_USE, HAS_LOST_ALL_USES)


def name_of_turn(conn: Connection, per: PolicyOwner, turn: str) -> str:
    """Return the policy that a turn trains. A turn of practice trains that of the turn whose prompt was asked again."""
    if per == "all":
        return DEFAULT_NAME
    query = select(t.turns.c.owner).where(t.turns.c.id == turn)
    return conn.execute(query).scalar() or DEFAULT_NAME


# Names from which on reading all heads takes less time than naming those that are wanted.
_MANY_NAMES = 100
_all_heads = select(t.heads.c.name, t.heads.c.version)
_some_heads = select(t.heads).where(t.heads.c.name.in_(bindparam("names", expanding=True)))


def read_heads(conn: Connection) -> dict[str, int]:
    """Return the head of every policy that has one, by name. Raises `StoreError` before `policies.ensure_root`."""
    rows = conn.execute(_all_heads).all()
    return _with_default({name: int(version) for name, version in rows})


def heads_of_names(conn: Connection, names: Iterable[str]) -> dict[str, int]:
    """Return the heads of these policies, without reading those of all others. Raises `StoreError` as `read_heads`."""
    asked = list(names)
    if len(asked) > _MANY_NAMES:
        heads = read_heads(conn)
    else:
        rows = conn.execute(_some_heads, {"names": [*asked, SHARED_NAME, DEFAULT_NAME]})
        heads = _with_default({row.name: int(row.version) for row in rows})
    return {name: head_version(heads, name) for name in asked}


def _with_default(heads: dict[str, int]) -> dict[str, int]:
    if DEFAULT_NAME not in heads:
        raise StoreError(
            "the store has no policy version yet. The gateway and the trainer write version 0 when they start: run "
            "`openclaw-rl up`, or wait until it has started"
        )
    return heads


def heads_in_use(conn: Connection) -> dict[str, int]:
    """Return the version that each policy answers with, by name."""
    return {name: version for name, version in read_heads(conn).items() if name != SHARED_NAME}


_CHANGES = "policy changes"
_count_change = (
    upsert(t.cursors)
    .values(name=_CHANGES, seq=1)
    .on_conflict_do_update(index_elements=["name"], set_={"seq": t.cursors.c.seq + 1})
)


def record_change(conn: Connection) -> None:
    """Count a change of a head, of a canary or of the state of a version; whoever serves them reads them again."""
    conn.execute(_count_change)


def count_changes(conn: Connection) -> int:
    """Return how often `record_change` was called on this store."""
    query = select(t.cursors.c.seq).where(t.cursors.c.name == _CHANGES)
    return int(conn.execute(query).scalar() or 0)


def head_version(heads: dict[str, int], name: str) -> int:
    """Return the head of a policy; of one without a version of its own, the shared parent."""
    return heads.get(name, heads.get(SHARED_NAME, heads[DEFAULT_NAME]))


def require_name(conn: Connection, name: str) -> str:
    """Return the whole name of a policy. The key may be left out ("agent:coder") if one policy is meant.

    Raises `OpenClawError` if there is no such policy.
    """
    known = list(heads_in_use(conn))
    found = find_name(known, name)
    if found is not None:
        return found
    versions = (
        select(t.policies.c.version)
        .where(t.policies.c.name == name)
        .order_by(t.policies.c.version.desc())
    )
    newest = conn.execute(versions.limit(1)).scalar_one_or_none()
    if newest is not None:
        raise OpenClawError(
            f"policy {name!r} has no head yet: the shared parent answers. Its newest version is {newest} "
            f"(`openclaw-rl policies show {newest}`)"
        )
    more = f", ... ({len(known)} in all)" if len(known) > _MAX_NAMED else ""
    raise OpenClawError(
        f"no policy {name!r}; expected one of {', '.join(known[:_MAX_NAMED])}{more}"
    )


def find_name(known: Iterable[str], name: str) -> str | None:
    """Return the policy of this name, or the only one that has it without its key; None if there is no such."""
    names = list(known)
    if name in names:
        return name
    matches = [whole_name for whole_name in names if _without_key(whole_name) == name]
    return matches[0] if len(matches) == 1 else None


def _without_key(name: str) -> str:
    """Return the name of a policy as a client names its owner: without the key of an agent or a user."""
    kind, _, owner = name.partition(":")
    return f"{kind}:{owner.partition(':')[2]}" if kind in _NAMED_BY_CLIENTS else name


def start_policies(conn: Connection, owner: PolicyOwner) -> None:
    """Store who has a policy of its own. The first time that anybody has, the default policy's head is the parent."""
    record_owner(conn, owner)
    heads = read_heads(conn)
    if owner != "all" and SHARED_NAME not in heads:
        move_head(conn, SHARED_NAME, heads[DEFAULT_NAME])
        events.append(conn, "policy.shared", str(heads[DEFAULT_NAME]), {}, time.time())


def record_main_key(conn: Connection, key: str) -> None:
    """Store the id of the home's first API key, which gets the policies that were trained on imported turns alone."""
    before = conn.execute(_main_key).scalar()
    row = {"key": _MAIN_KEY, "value": key.encode()}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))
    known = set(conn.execute(select(t.policies.c.name).distinct()).scalars())
    for kind in _NAMED_BY_CLIENTS:
        prefix = f"{kind}:{IMPORT_SCOPE}:"
        for name in sorted(name for name in known if name.startswith(prefix)):
            renamed = f"{kind}:{key}:{name.removeprefix(prefix)}"
            if renamed not in known:
                _rename_policy(conn, name, renamed)
    # After the heads have their names: what a turn has lost depends on the head of its policy.
    if before != key:
        _assign_owners(conn, stored_owner(conn), t.turns.c.scope == IMPORT_SCOPE)


def _rename_policy(conn: Connection, name: str, renamed: str) -> None:
    for column in (t.policies.c.name, t.heads.c.name, t.retraining.c.name, t.lessons.c.policy):
        conn.execute(update(column.table).where(column == name).values({column.name: renamed}))
    record_change(conn)


def move_head(conn: Connection, name: str, version: int) -> None:
    """Make `version` the head of a policy."""
    moved = conn.execute(
        update(t.heads).where(t.heads.c.name == name).values(version=version)
    ).rowcount
    if not moved:
        conn.execute(insert(t.heads), {"name": name, "version": version})
    record_change(conn)
