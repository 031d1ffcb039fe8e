"""Bounds on open connections, in all and by client address: one without a valid key gives way to a new one."""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from collections import Counter
from typing import Protocol

log = logging.getLogger(__name__)

# Open files of the gateway that are no client connections: store, engine, logs.
_OTHER_OPEN_FILES = 128
# Between two warnings.
_WARNING_SECONDS = 60.0
# One client has the whole network.
_IPV6_NETWORK_BITS = 64


class LimitedConnection(Protocol):
    """The part of a connection that `ConnectionLimits` uses."""

    client_address: str

    @property
    def is_idle(self) -> bool:
        """Whether no request is being handled."""

    def force_close(self) -> None:
        """Close at once."""


class ConnectionLimits:
    """Registry of the open connections.

    If there are too many, the oldest connection that has not shown a valid key is closed for a new one, else the
    oldest idle one. Only if all others are in use with a valid key is the new one refused.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        # In the order of their arrival.
        self._unauthenticated: dict[LimitedConnection, None] = {}
        self._authenticated: dict[LimitedConnection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._next_warning = 0.0

    def admit(self, connection: LimitedConnection) -> bool:
        """Register a connection, and close another one if that is necessary. Return False if none can be closed."""
        address = connection.client_address
        full_address = self._by_address[address] >= self._per_address
        if full_address or len(self._unauthenticated) + len(self._authenticated) >= self._total:
            self._warn(address if full_address else None)
            other = self._find_closable(address if full_address else None)
            if other is None:
                return False
            self.remove(other)
            other.force_close()
        self._unauthenticated[connection] = None
        self._by_address[address] += 1
        return True

    def mark_authenticated(self, connection: LimitedConnection) -> None:
        """Record that a valid key was sent on this connection."""
        if connection in self._unauthenticated:
            del self._unauthenticated[connection]
            self._authenticated[connection] = None

    def remove(self, connection: LimitedConnection) -> None:
        """Forget a connection. Nothing happens if it is not registered."""
        for registered in (self._unauthenticated, self._authenticated):
            if connection in registered:
                del registered[connection]
                self._by_address[connection.client_address] -= 1
                if not self._by_address[connection.client_address]:
                    del self._by_address[connection.client_address]

    def _find_closable(self, address: str | None) -> LimitedConnection | None:
        """Return the connection to close, of `address` if it is given."""

        def oldest(
            connections: dict[LimitedConnection, None], *, idle: bool
        ) -> LimitedConnection | None:
            return next(
                (
                    c
                    for c in connections
                    if address in (None, c.client_address) and (c.is_idle or not idle)
                ),
                None,
            )

        return oldest(self._unauthenticated, idle=False) or oldest(self._authenticated, idle=True)

    def _warn(self, address: str | None) -> None:
        if time.monotonic() < self._next_warning:
            return
        self._next_warning = time.monotonic() + _WARNING_SECONDS
        if address is None:
            log.warning(
                "%d connections are open (serve.max_connections); idle ones are closed", self._total
            )
        else:
            setting = "serve.max_connections_per_address"
            log.warning(
                "%s has %d connections (%s); its idle ones are closed",
                address,
                self._per_address,
                setting,
            )


def client_address(peer: tuple[str, int] | tuple[str, int, int, int] | None) -> str:
    """Return the address of a client as it is counted: of IPv6 the network, of which a client has all addresses."""
    if not peer:
        return ""
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))


def allow_open_files(connections: int) -> int:
    """Raise the soft limit of open files for so many connections. Return how many the limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_OPEN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        # macOS refuses values above a limit of the kernel.
        allowed = soft
    if allowed < wanted:
        log.warning(
            "this process may open %d files only, so it accepts fewer connections than configured",
            allowed,
        )
    return min(connections, max(allowed - _OTHER_OPEN_FILES, 1))
