"""The trainer's lease, kept alive from a side thread for as long as this process runs.

A frozen process renews nothing. One that wakes up after its lease is over does not renew it either: somebody else may
have been at work, so the lease is lost, and whoever holds it must start over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from openclaw_rl.errors import StaleLease, StoreError
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.types import Lease

log = logging.getLogger(__name__)
LEASE = "trainer"
"""Its name: who holds it may publish versions."""


class LeaseKeeper:
    """Acquires and renews one lease. `clock` gives seconds since the epoch."""

    def __init__(
        self, store: Store, name: str, holder: str, *, ttl: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._name, self._holder, self._ttl, self._clock = store, name, holder, ttl, clock
        self._lease: Lease | None = None
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{name}", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> Lease | None:
        """The lease in force, or None when it was never had or is lost."""
        with self._guard:
            if self._lease is not None and self._clock() >= self._lease.expires_at:
                log.warning("the lease %s ran out while this process was frozen or the store was busy", self._name)
                self._lease = None
            return self._lease

    def acquire(self) -> Lease | None:
        """The lease, taken if it is free. None while another holder has it."""
        if (held := self.lease) is not None:
            return held
        with self._store.write() as conn:
            lease = leases.acquire(conn, self._name, self._holder, self._ttl, self._clock())
        with self._guard:
            self._lease = lease
        return lease

    def refresh(self) -> None:
        """Ask the store now whether the lease still stands; forget it if not."""
        if (lease := self.lease) is None:
            return
        try:
            with self._store.write() as conn:
                renewed = leases.renew(conn, lease, self._ttl, self._clock())
        except StaleLease:
            self._put(lease, None)
        else:
            self._put(lease, renewed)

    def close(self) -> None:
        """Stop renewing, and give the lease back."""
        self._over.set()
        self._thread.join()
        if (lease := self.lease) is not None:
            with self._store.write() as conn:
                leases.release(conn, lease)
            self._put(lease, None)

    def _keep(self) -> None:
        while not self._over.wait(self._ttl / 3):
            try:
                self.refresh()
            except StoreError as error:
                log.warning("the lease %s could not be renewed, trying again: %s", self._name, error)

    def _put(self, old: Lease, new: Lease | None) -> None:
        with self._guard:
            if self._lease is not None and self._lease.epoch == old.epoch:
                self._lease = new
