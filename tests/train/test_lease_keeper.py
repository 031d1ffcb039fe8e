from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from openclaw_rl.common import steady_clock
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.train.lease_keeper import TRAINER_LEASE, LeaseKeeper


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
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


def test_an_expired_lease_is_not_renewed(store: Store) -> None:
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


def put_lease(store: Store, holder: str, expires_at: float) -> None:
    with store.write() as conn:
        assert leases.acquire(conn, TRAINER_LEASE, holder, expires_at, 0.0) is not None


@pytest.mark.parametrize("jump", [3 * 3600.0, -3 * 3600.0])
def test_a_jump_of_the_wall_clock_does_not_touch_a_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    keeper, other = (LeaseKeeper(store, ttl=2.0) for _ in range(2))
    held = keeper.acquire()
    assert held is not None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    keeper.renew_now()
    assert keeper.current_lease is not None
    assert keeper.current_lease.epoch == held.epoch
    assert other.acquire() is None
    for each in (keeper, other):
        each.close()


@pytest.mark.parametrize("boot", ["elsewhere/00000000", steady_clock.boot_name(), "host"])
def test_a_holder_that_died_hours_ahead_is_waited_for_no_longer_than_a_lifetime(
    store: Store, boot: str
) -> None:
    """Its lease would end in three hours: it was written by a clock that was ahead, or by an earlier boot."""
    put_lease(store, f"{boot}:17:abcdef", time.time() + 3 * 3600)
    clock = Clock()
    keeper = LeaseKeeper(store, ttl=30.0, clock=clock)
    assert keeper.acquire() is None
    assert f"another trainer ({boot}:17:abcdef) holds the lease" in keeper.waiting_note()
    assert "30 s" in keeper.waiting_note()
    clock.now += 29
    assert keeper.acquire() is None
    clock.now += 1.1
    assert keeper.acquire() is not None
    keeper.close()


def test_a_holder_on_another_machine_that_renews_is_never_overtaken(store: Store) -> None:
    """Its clock cannot be compared with ours: whether it renews is all that counts."""
    clock = Clock()
    keeper = LeaseKeeper(store, ttl=30.0, clock=clock)
    put_lease(store, "elsewhere/00000000:17:abcdef", 5.0)
    for number in range(10):
        assert keeper.acquire() is None
        clock.now += 10
        with store.write() as conn:
            held = leases.get(conn, TRAINER_LEASE)
            assert held is not None
            leases.renew(conn, held, 5.0 + number, 1.0)
    keeper.close()


def test_a_lease_of_this_boot_that_expired_is_free_at_once(store: Store) -> None:
    clock = Clock()
    put_lease(store, f"{steady_clock.boot_name()}:17:abcdef", clock.now - 1)
    keeper = LeaseKeeper(store, ttl=30.0, clock=clock)
    assert keeper.acquire() is not None
    keeper.close()
