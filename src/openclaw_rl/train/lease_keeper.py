"""The trainer's lease, renewed by a background thread while this process runs.

A suspended process renews nothing. If it resumes after its lease has expired, the lease is lost and is not renewed,
because another trainer may have worked since. The holder must then start over.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

from openclaw_rl.errors import StaleLease, StoreError
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.types import Lease

log = logging.getLogger(__name__)
TRAINER_LEASE = "trainer"
"""Name of the lease whose holder may publish versions."""


class LeaseKeeper:
    """Acquires and renews `TRAINER_LEASE`. `ttl` is in seconds; `clock` returns seconds since the epoch."""

    def __init__(self, store: Store, *, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self._store, self._ttl, self._clock = store, ttl, clock
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew_loop, name=f"lease-{TRAINER_LEASE}", daemon=True)
        self._thread.start()

    @property
    def current_lease(self) -> Lease | None:
        """The current lease, or None if it was never acquired or is lost."""
        with self._lock:
            if self._lease is not None and self._clock() >= self._lease.expires_at:
                log.warning("the trainer's lease expired while this process was suspended or the store was busy")
                self._lease = None
            return self._lease

    def acquire(self) -> Lease | None:
        """Return the lease, acquired if it is free; None while another holder has it."""
        if (held := self.current_lease) is not None:
            return held
        with self._store.write() as conn:
            lease = leases.acquire(conn, TRAINER_LEASE, self._holder, self._ttl, self._clock())
        with self._lock:
            self._lease = lease
        return lease

    def renew_now(self) -> None:
        """Renew the lease in the store now; forget it if the store says that it is lost."""
        if (lease := self.current_lease) is None:
            return
        try:
            with self._store.write(durable=False) as conn:
                renewed = leases.renew(conn, lease, self._ttl, self._clock())
        except StaleLease:
            self._replace_lease(lease, None)
        else:
            self._replace_lease(lease, renewed)

    def close(self) -> None:
        """Stop renewing, and release the lease."""
        self._closed.set()
        self._thread.join()
        if (lease := self.current_lease) is not None:
            with self._store.write() as conn:
                leases.release(conn, lease)
            self._replace_lease(lease, None)

    def _renew_loop(self) -> None:
        while not self._closed.wait(self._ttl / 3):
            try:
                self.renew_now()
            except StoreError as error:
                log.warning("the trainer's lease could not be renewed, will try again: %s", error)

    def _replace_lease(self, old: Lease, new: Lease | None) -> None:
        with self._lock:
            if self._lease is not None and self._lease.epoch == old.epoch:
                self._lease = new
