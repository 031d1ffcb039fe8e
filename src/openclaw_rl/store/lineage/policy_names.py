"""Policies of one's own: which policy a request belongs to, and the head of each policy (`policy.per`).

A policy is named "default", or after who asks: "agent:3f2a:coder", "user:3f2a:ann", "key:3f2a". 3f2a is the id of the
API key, because any client can name an agent or a user. Without a version of its own a policy is answered by the shared
parent: the version that was the head when `policy.per` was first set.

The store keeps `policy.per` as the system was last started with it, so that every command on the home uses that value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    case,
    cast,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from openclaw_rl.errors import ConfigError, OpenClawError, StoreError
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.types import Kind, PolicyState, TurnState

PolicyOwner = Literal["all", "agent", "user", "key"]
"""Who has a policy of its own; "all": one policy for all."""
DEFAULT_NAME = "default"
"""Name of the policy of requests without an owner, and of the only one with `policy.per: all`."""
SHARED_NAME = "shared"
"""Name of the head that never moves: the parent of every policy of one's own."""
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
    """Store who has a policy of its own from now on."""
    row = {"key": _OWNER_KEY, "value": to_json(owner)}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))


def policy_name(per: PolicyOwner, *, agent: str, user: str, key: str) -> str:
    """Return the name of the policy that a request belongs to. `key`: id of the API key, also of an episode's owner."""
    owner = {"all": "", "agent": agent, "user": user, "key": key}[per]
    if per in _NAMED_BY_CLIENTS and owner:
        owner = f"{key}:{owner}"
    return name_of_owner(per, owner)


def name_of_owner(per: PolicyOwner, owner: str | None) -> str:
    """Return the name of the policy of this owner, as `owner_column` has it."""
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


class OwnerFilter(NamedTuple):
    """Selects the turns that train a policy, whose exchange has this agent, user or key.

    `key`: id of the API key of an agent or a user; None: any, for turns that name nobody.
    """

    column: str
    value: str
    key: str | None = None

    def _conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on a row of `exchanges`."""
        conditions = [_OWNERS[self.column] == self.value]
        if self.key is not None:
            conditions.append(_key_of_exchange == self.key)
        return conditions

    def condition(self) -> ColumnElement[bool]:
        """Condition on a row of `turns`."""
        of_owner = select(t.exchanges.c.seq).where(
            t.exchanges.c.seq == t.turns.c.seq, *self._conditions()
        )
        return of_owner.correlate(t.turns).exists()

    def practice_condition(self) -> ColumnElement[bool]:
        """Condition on a row of `turns` of practice: the turn whose prompt was asked again has this owner."""
        source = t.turns.alias("source")
        practised = select(t.practice_turns.c.turn).join(
            source, source.c.id == t.practice_turns.c.source
        )
        practised = practised.join(t.exchanges, t.exchanges.c.seq == source.c.seq)
        return t.turns.c.id.in_(practised.where(*self._conditions()))


_MAX_NAMED = 20


def owner_column(per: PolicyOwner) -> ColumnElement[str]:
    """Return what names the owner of a policy in a row of `exchanges`, empty for nobody; not for "all"."""
    column = _OWNERS[per]
    if per not in _NAMED_BY_CLIENTS:
        return column
    return case((column == "", ""), else_=_key_of_exchange + ":" + column)


def owner_filter(per: PolicyOwner, name: str) -> OwnerFilter | None:
    """Return which turns train the policy `name`; None: all."""
    if per == "all":
        return None
    if name == DEFAULT_NAME:
        return OwnerFilter(per, "")
    owner = name.removeprefix(f"{per}:")
    if per not in _NAMED_BY_CLIENTS:
        return OwnerFilter(per, owner)
    key, _, named = owner.partition(":")
    return OwnerFilter(per, named, key)


def is_owned(per: PolicyOwner, name: str) -> bool:
    """Return whether the policy `name` is trained under this setting."""
    return name == DEFAULT_NAME or (per != "all" and name.startswith(f"{per}:"))


def waiting_names(conn: Connection, per: PolicyOwner) -> list[str]:
    """Return the policies that may have turns to train on.

    First those with batches of an undo; then those with judged turns that no version used, or that a version used which
    was rolled back or rejected, by the oldest such turn.
    """
    if per == "all":
        return [DEFAULT_NAME]
    left_states = (PolicyState.ROLLED_BACK.value, PolicyState.REJECTED.value)
    lost = select(t.uses.c.turn).join(t.policies, t.policies.c.version == t.uses.c.policy)
    conditions = (
        t.turns.c.uses == 0,
        t.turns.c.id.in_(lost.where(t.policies.c.state.in_(left_states))),
    )
    oldest: dict[str | None, int] = {}
    for condition in conditions:
        for owner, seq in conn.execute(_oldest_by_owner(per, condition)):
            oldest[owner] = min(seq, oldest.get(owner, seq))
    fresh = [name_of_owner(per, owner) for owner in sorted(oldest, key=oldest.__getitem__)]
    batches = select(t.retraining.c.name).order_by(t.retraining.c.seq)
    undone = [name for name in conn.execute(batches).scalars() if is_owned(per, name)]
    return list(dict.fromkeys([*undone, *fresh])) or [DEFAULT_NAME]


def _oldest_by_owner(per: PolicyOwner, condition: ColumnElement[bool]) -> Select[str, Any]:
    """Select each owner and the number of the oldest of its judged turns that fit. One condition uses an index."""
    query = select(owner_column(per), func.min(t.turns.c.seq)).select_from(t.turns)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq).where(
        condition,
        t.equals_literal(t.turns.c.state, TurnState.JUDGED),
        t.turns.c.untrainable.is_(None),
        t.equals_literal(t.turns.c.kind, Kind.MAIN),
        t.turns.c.signal > 0,
    )
    return query.group_by(owner_column(per))


def name_of_turn(conn: Connection, per: PolicyOwner, turn: str) -> str:
    """Return the policy that a turn trains. A turn of practice trains that of the turn whose prompt was asked again."""
    if per == "all":
        return DEFAULT_NAME
    source = select(t.practice_turns.c.source).where(t.practice_turns.c.turn == turn)
    turn = conn.execute(source).scalar_one_or_none() or turn
    query = select(owner_column(per)).join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
    return name_of_owner(per, conn.execute(query.where(t.turns.c.id == turn)).scalar())


def read_heads(conn: Connection) -> dict[str, int]:
    """Return the head of every policy that has one, by name. Raises `StoreError` before `policies.ensure_root`."""
    heads = {row.name: int(row.version) for row in conn.execute(select(t.heads))}
    if DEFAULT_NAME not in heads:
        raise StoreError(
            "the store has no policy version yet. The gateway and the trainer write version 0 when they start: run "
            "`openclaw-rl up`, or wait until it has started"
        )
    return heads


def head_version(heads: dict[str, int], name: str) -> int:
    """Return the head of a policy; of one without a version of its own, the shared parent."""
    return heads.get(name, heads.get(SHARED_NAME, heads[DEFAULT_NAME]))


def require_name(conn: Connection, name: str) -> str:
    """Return the whole name of a policy. The key may be left out ("agent:coder") if one policy is meant.

    Raises `OpenClawError` if there is no such policy.
    """
    known = [known for known in read_heads(conn) if known != SHARED_NAME]
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
        conn.execute(insert(t.heads), {"name": SHARED_NAME, "version": heads[DEFAULT_NAME]})
        events.append(conn, "policy.shared", str(heads[DEFAULT_NAME]), {}, time.time())


def record_main_key(conn: Connection, key: str) -> None:
    """Store the id of the home's first API key, which gets the policies that were trained on imported turns alone."""
    row = {"key": _MAIN_KEY, "value": key.encode()}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))
    known = set(conn.execute(select(t.policies.c.name).distinct()).scalars())
    for kind in _NAMED_BY_CLIENTS:
        prefix = f"{kind}:{IMPORT_SCOPE}:"
        for name in sorted(name for name in known if name.startswith(prefix)):
            renamed = f"{kind}:{key}:{name.removeprefix(prefix)}"
            if renamed not in known:
                _rename_policy(conn, name, renamed)


def _rename_policy(conn: Connection, name: str, renamed: str) -> None:
    for column in (t.policies.c.name, t.heads.c.name, t.retraining.c.name, t.lessons.c.policy):
        conn.execute(update(column.table).where(column == name).values({column.name: renamed}))


def move_head(conn: Connection, name: str, version: int) -> None:
    """Make `version` the head of a policy."""
    moved = conn.execute(
        update(t.heads).where(t.heads.c.name == name).values(version=version)
    ).rowcount
    if not moved:
        conn.execute(insert(t.heads), {"name": name, "version": version})
