"""The trainer's lease, renewed by a background thread while this process runs.

A suspended process renews nothing. If it resumes after its lease has expired, the lease is lost and is not renewed,
because another trainer may have worked since. The holder must then start over.
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
"""Name of the lease whose holder may publish versions."""


class LeaseKeeper:
    """Acquires and renews one lease. `ttl` is in seconds; `clock` returns seconds since the epoch."""

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
        """The current lease, or None if it was never acquired or is lost."""
        with self._guard:
            if self._lease is not None and self._clock() >= self._lease.expires_at:
                log.warning("the lease %s expired while this process was suspended or the store was busy", self._name)
                self._lease = None
            return self._lease

    def acquire(self) -> Lease | None:
        """Return the lease, acquired if it is free; None while another holder has it."""
        if (held := self.lease) is not None:
            return held
        with self._store.write() as conn:
            lease = leases.acquire(conn, self._name, self._holder, self._ttl, self._clock())
        with self._guard:
            self._lease = lease
        return lease

    def refresh(self) -> None:
        """Renew the lease in the store now; forget it if the store says that it is lost."""
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
        """Stop renewing, and release the lease."""
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
                log.warning("the lease %s could not be renewed, will try again: %s", self._name, error)

    def _put(self, old: Lease, new: Lease | None) -> None:
        with self._guard:
            if self._lease is not None and self._lease.epoch == old.epoch:
                self._lease = new
