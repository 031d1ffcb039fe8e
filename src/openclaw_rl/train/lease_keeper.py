"""The trainer's lease, renewed by a background thread while this process runs.

A suspended process renews nothing. If it resumes after its lease has expired, the lease is lost and is not renewed,
because another trainer may have worked since. The holder must then start over.

Leases expire by the time since the boot of the machine, so the wall clock may jump. The lease of another boot or
machine, whose clock cannot be compared, is free once it has not been renewed for a whole lifetime.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable

from openclaw_rl.common import steady_clock
from openclaw_rl.errors import StaleLease, StoreError
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.types import Lease

log = logging.getLogger(__name__)
TRAINER_LEASE = "trainer"
"""Name of the lease whose holder may publish versions."""


class LeaseKeeper:
    """Acquires and renews `TRAINER_LEASE`. `ttl` is in seconds; `clock` returns seconds and must not jump."""

    def __init__(
        self, store: Store, *, ttl: float, clock: Callable[[], float] = steady_clock.boot_seconds
    ) -> None:
        self._store = store
        self._ttl = ttl
        self.clock = clock
        self._holder = f"{steady_clock.boot_name()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._lease: Lease | None = None
        # The lease of another holder, and since when it is unchanged.
        self._seen: tuple[Lease, float] | None = None
        self.acquired_at = 0.0
        """When the current lease was acquired, in seconds since the epoch."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._renew_loop, name=f"lease-{TRAINER_LEASE}", daemon=True
        )
        self._thread.start()

    @property
    def current_lease(self) -> Lease | None:
        """The current lease, or None if it was never acquired or is lost."""
        with self._lock:
            if self._lease is not None and self.clock() >= self._lease.expires_at:
                log.warning(
                    "the trainer's lease expired while this process was suspended or the store was busy"
                )
                self._lease = None
            return self._lease

    def require_lease(self) -> Lease:
        """Return the current lease. Raises `StaleLease` without one."""
        lease = self.current_lease
        if lease is None:
            raise StaleLease(
                "the trainer's lease expired during the step; another trainer may be running"
            )
        return lease

    def acquire(self) -> Lease | None:
        """Return the lease, acquired if it is free; None while another holder has it."""
        current = self.current_lease
        if current is not None:
            return current
        with self._store.write() as conn:
            stored = leases.get(conn, TRAINER_LEASE)
            if stored is not None:
                if not self._is_free(stored):
                    return None
                leases.release(conn, stored)
            lease = leases.acquire(conn, TRAINER_LEASE, self._holder, self._ttl, self.clock())
        self.acquired_at = time.time()
        with self._lock:
            self._lease = lease
        return lease

    def _is_free(self, stored: Lease) -> bool:
        """Return whether a lease in the store is released, expired, or not renewed for so long that its holder died."""
        if stored.expires_at <= 0 or stored.holder == self._holder:
            return True
        now = self.clock()
        boot = stored.holder.split(":")[0]
        if boot == steady_clock.boot_name() and stored.expires_at <= now:
            return True
        if self._seen is None or self._seen[0] != stored:
            self._seen = (stored, now)
            log.info(
                "%s holds the trainer's lease; it is free if it is not renewed for %g s",
                stored.holder,
                self._ttl,
            )
        _, seen_at = self._seen
        return now - seen_at >= self._ttl

    def waiting_note(self) -> str:
        """Return why `acquire` returned None, and how long that may last."""
        holder = f" ({self._seen[0].holder})" if self._seen is not None else ""
        cause = f"another trainer{holder} holds the lease"
        return f"waiting: {cause}; it is taken over if it is not renewed for {self._ttl:g} s"

    def renew_now(self) -> None:
        """Renew the lease in the store now; forget it if the store says that it is lost."""
        if (lease := self.current_lease) is None:
            return
        try:
            with self._store.write(durable=False) as conn:
                renewed = leases.renew(conn, lease, self._ttl, self.clock())
        except StaleLease:
            self._replace_lease(lease, None)
        else:
            self._replace_lease(lease, renewed)

    def close(self) -> None:
        """Stop renewing, and release the lease."""
        self._closed.set()
        self._thread.join()
        if (lease := self.current_lease) is not None:
            try:
                with self._store.write() as conn:
                    leases.release(conn, lease)
            except StoreError as error:
                # The next trainer waits until it expires.
                log.warning("the trainer's lease could not be released: %s", error)
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
