"""Leases: the exclusive right to a job, with an epoch that fences off earlier holders.

`now` and `expires_at` are seconds by the clock that the holders share, which need not be the wall clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.errors import StaleLease
from openclaw_rl.store.rows import from_row, to_row
from openclaw_rl.store.schema import leases
from openclaw_rl.types import Lease

_get = select(leases).where(leases.c.name == bindparam("name"))
_put = insert(leases)
_upsert = _put.on_conflict_do_update(
    index_elements=["name"],
    set_={
        "holder": _put.excluded.holder,
        "epoch": _put.excluded.epoch,
        "expires_at": _put.excluded.expires_at,
    },
)
_set_expiry = (
    update(leases).where(leases.c.name == bindparam("which")).values(expires_at=bindparam("until"))
)


def acquire(conn: Connection, name: str, holder: str, ttl: float, now: float) -> Lease | None:
    """Return the lease for `ttl` seconds with a new epoch, or None while another holder's lease is valid.

    The same holder may acquire it again, which makes its earlier lease stale.
    """
    row = _lease_row(conn, name)
    epoch = 1
    if row is not None:
        is_held_by_other = row.holder != holder and row.expires_at > now
        if is_held_by_other:
            return None
        epoch = row.epoch + 1
    lease = Lease(name=name, holder=holder, epoch=epoch, expires_at=now + ttl)
    conn.execute(_upsert, to_row(leases, lease))
    return lease


def get(conn: Connection, name: str) -> Lease | None:
    """Return the lease as it is in the store, valid or not."""
    row = _lease_row(conn, name)
    return None if row is None else from_row(Lease, row)


def check(conn: Connection, lease: Lease, now: float) -> None:
    """Raise `StaleLease` if another holder or epoch has the lease, or if it has expired."""
    row = _lease_row(conn, lease.name)
    if row is None:
        raise _not_held_error(lease, "nobody holds it")
    if (row.epoch, row.holder) != (lease.epoch, lease.holder):
        raise _not_held_error(lease, f"{row.holder} holds epoch {row.epoch}")
    if row.expires_at <= now:
        raise StaleLease(
            f"lease {lease.name!r}: {lease.holder} did not renew it; it expired {now - row.expires_at:.1f} s ago."
        )


def _not_held_error(lease: Lease, actual: str) -> StaleLease:
    return StaleLease(
        f"lease {lease.name!r}: epoch {lease.epoch} of {lease.holder} was expected, but {actual}."
    )


def renew(conn: Connection, lease: Lease, ttl: float, now: float) -> Lease:
    """Extend the lease to `now + ttl` with the same epoch. Raises `StaleLease` as `check` does."""
    check(conn, lease, now)
    conn.execute(_set_expiry, {"which": lease.name, "until": now + ttl})
    return replace(lease, expires_at=now + ttl)


def release(conn: Connection, lease: Lease) -> None:
    """Free the lease at once; a stale one changes nothing. The epoch is kept, so that it is never used twice."""
    row = _lease_row(conn, lease.name)
    if row is not None and (row.epoch, row.holder) == (lease.epoch, lease.holder):
        conn.execute(_set_expiry, {"which": lease.name, "until": 0.0})


def _lease_row(conn: Connection, name: str) -> Row[Any] | None:
    return conn.execute(_get, {"name": name}).one_or_none()
