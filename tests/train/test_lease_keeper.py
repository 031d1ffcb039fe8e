from __future__ import annotations

import time
from collections.abc import Callable

from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.train.lease_keeper import TRAINER_LEASE, LeaseKeeper


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.01)


def test_a_lease_is_kept_as_long_as_its_holder_runs(store: Store) -> None:
    first, second = (LeaseKeeper(store, ttl=0.3) for _ in range(2))
    held = first.acquire()
    assert held is not None
    time.sleep(0.7)
    assert first.current_lease is not None
    assert first.current_lease.epoch == held.epoch
    assert second.acquire() is None
    first.close()
    taken = second.acquire()
    assert taken is not None, "what is given back is free at once"
    assert taken.epoch > held.epoch
    second.close()


def test_who_was_away_too_long_does_not_renew(store: Store) -> None:
    """Time jumps, as it does for a frozen process: the lease is lost although nobody has taken it."""
    clock = Clock()
    keeper = LeaseKeeper(store, ttl=0.3, clock=clock)
    held = keeper.acquire()
    assert held is not None
    clock.now += 0.31
    assert keeper.current_lease is None
    time.sleep(0.25)  # two turns of the renewing thread
    with store.read() as conn:
        row = conn.exec_driver_sql("SELECT epoch, expires_at FROM leases").one()
    assert row.expires_at < clock.now
    again = keeper.acquire()
    assert again is not None
    assert again.epoch == held.epoch + 1
    keeper.close()


def test_a_lease_that_was_taken_over_is_forgotten(store: Store) -> None:
    clock = Clock()
    keeper = LeaseKeeper(store, ttl=0.3, clock=clock)
    assert keeper.acquire() is not None
    with store.write() as conn:  # an operator's doing: the other's clock is ahead
        assert leases.acquire(conn, TRAINER_LEASE, "b", 60.0, clock.now + 10) is not None
    wait_until(lambda: keeper.current_lease is None)
    assert keeper.acquire() is None
    keeper.close()
