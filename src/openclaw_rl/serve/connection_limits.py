"""Bounds on open connections, in all and by client address: owners before tickets, tickets before the rest."""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from collections import Counter
from enum import Enum, auto
from typing import Protocol

log = logging.getLogger(__name__)

# Open files of the gateway that are no client connections: store, engine, logs.
_OTHER_OPEN_FILES = 128
# Between two warnings.
_WARNING_SECONDS = 60.0
# Places beyond the limit, for health checks and for an owner's key.
_RESERVE = 16
# One client has the whole network.
_IPV6_NETWORK_BITS = 64


class Admission(Enum):
    """The place of a new connection."""

    OPEN = auto()
    RESERVE = auto()  # for a health check, or for an owner's key, which displaces a ticket
    REFUSED = auto()


class _Rank(Enum):
    """Kind of the latest key on a connection. The lower ones give way to the higher ones."""

    NO_KEY = auto()
    TICKET = auto()
    OWNER = auto()


class LimitedConnection(Protocol):
    """The part of a connection that `ConnectionLimits` uses."""

    client_address: str

    @property
    def is_idle(self) -> bool:
        """Whether no request is being handled, or only one whose body makes no progress."""

    def force_close(self) -> None:
        """Close at once."""


class ConnectionLimits:
    """Registry of the open connections.

    If there are too many, the oldest connection that has not shown a valid key is closed for a new one, else the
    oldest idle one, those of tickets first. Only if all others are in use with a valid key, the new one gets a place of
    the reserve, or is refused. Tickets of episodes have at most half of the places, in all and of one address.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        # Each in the order of arrival.
        self._open: dict[_Rank, dict[LimitedConnection, None]] = {rank: {} for rank in _Rank}
        self._reserve: dict[LimitedConnection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._next_warning = 0.0

    def admit(self, connection: LimitedConnection) -> Admission:
        """Register a connection, and close another one if that is necessary."""
        address = connection.client_address
        is_full, full_address = self._is_full(address)
        if is_full:
            self._warn(full_address)
            other = self._find_closable(full_address)
            if other is None:
                return self._admit_to_reserve(connection)
            self._close(other)
        self._register(connection, _Rank.NO_KEY)
        return Admission.OPEN

    def mark_owner(self, connection: LimitedConnection) -> bool:
        """Record that an owner's key was sent. Return False if the connection is of the reserve and must stay there.

        One of the reserve takes the place of a ticket, also of one that is in use.
        """
        if connection in self._reserve:
            _, full_address = self._is_full(connection.client_address)
            tickets = self._of_address(_Rank.TICKET, full_address)
            other = self._find_closable(full_address) or next(iter(tickets), None)
            if other is None:
                return False
            self._close(other)
            del self._reserve[connection]
            self._register(connection, _Rank.OWNER)
        self._move(connection, _Rank.OWNER)
        return True

    def mark_ticket(self, connection: LimitedConnection) -> bool:
        """Record that a ticket was sent. Return False if tickets have no place left, and no idle one gives way."""
        if connection in self._reserve:
            return False
        if connection in self._open[_Rank.TICKET]:
            return True
        address = connection.client_address
        of_address = self._of_address(_Rank.TICKET, address)
        if len(of_address) >= _share(self._per_address):
            candidates = of_address
        elif len(self._open[_Rank.TICKET]) >= _share(self._total):
            candidates = list(self._open[_Rank.TICKET])
        else:
            self._move(connection, _Rank.TICKET)
            return True
        idle = next(filter(_is_idle, candidates), None)
        if idle is None:
            return False
        self._close(idle)
        self._move(connection, _Rank.TICKET)
        return True

    def remove(self, connection: LimitedConnection) -> None:
        """Forget a connection. Nothing happens if it is not registered."""
        self._reserve.pop(connection, None)
        for registered in self._open.values():
            if connection in registered:
                del registered[connection]
                self._by_address[connection.client_address] -= 1
                if not self._by_address[connection.client_address]:
                    del self._by_address[connection.client_address]

    def _register(self, connection: LimitedConnection, rank: _Rank) -> None:
        self._open[rank][connection] = None
        self._by_address[connection.client_address] += 1

    def _move(self, connection: LimitedConnection, rank: _Rank) -> None:
        """Give an open connection another rank."""
        if connection in self._open[rank]:
            return
        for registered in self._open.values():
            if connection in registered:
                del registered[connection]
                self._open[rank][connection] = None
                return

    def _close(self, connection: LimitedConnection) -> None:
        self.remove(connection)
        connection.force_close()

    def _admit_to_reserve(self, connection: LimitedConnection) -> Admission:
        if len(self._reserve) >= _RESERVE:
            oldest = next(iter(self._reserve))
            if not oldest.is_idle:
                return Admission.REFUSED
            self._close(oldest)
        self._reserve[connection] = None
        return Admission.RESERVE

    def _is_full(self, address: str) -> tuple[bool, str | None]:
        """Return whether there is no place for a new connection, and its address if that is the reason."""
        if self._by_address[address] >= self._per_address:
            return True, address
        return sum(map(len, self._open.values())) >= self._total, None

    def _of_address(self, rank: _Rank, address: str | None) -> list[LimitedConnection]:
        connections = self._open[rank]
        return [one for one in connections if address in (None, one.client_address)]

    def _find_closable(self, address: str | None) -> LimitedConnection | None:
        """Return the connection to close for one without a key, of `address` if it is given."""
        without_key = self._of_address(_Rank.NO_KEY, address)
        if without_key:
            return without_key[0]
        with_key = [
            *self._of_address(_Rank.TICKET, address),
            *self._of_address(_Rank.OWNER, address),
        ]
        return next(filter(_is_idle, with_key), None)

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


def _is_idle(connection: LimitedConnection) -> bool:
    return connection.is_idle


def _share(places: int) -> int:
    """Return the places that tickets may have."""
    return max(places // 2, 1)


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
