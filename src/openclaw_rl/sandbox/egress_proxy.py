"""A proxy for HTTP and HTTPS that lets a build reach public servers, and the package sources of this machine.

Nothing else of this machine and its networks can be reached by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Collection
from urllib.parse import urlsplit

from openclaw_rl.errors import OpenClawError

_MAX_HEAD = 2**16
_READ_BYTES = 2**16
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 60.0
_PORTS = frozenset({80, 443})
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Of clouds, beside those of the network link.
_METADATA_SERVICES = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
_HOP_HEADERS = (b"proxy-connection:", b"proxy-authorization:", b"connection:", b"keep-alive:")


class AddressRefused(OpenClawError):
    """Raised for an address that a build may not reach."""


@contextlib.asynccontextmanager
async def open_egress_proxy(
    sources: Collection[tuple[str, int]] = (),
) -> AsyncIterator[tuple[str, int]]:
    """Serve the proxy on a free port of the loopback interface, and yield its host and port.

    `sources`: hosts and ports that may also be of a private network.
    """
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await _serve_client(reader, writer, sources)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # One side has closed, or the build has ended.
            pass
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_MAX_HEAD)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _serve_client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    sources: Collection[tuple[str, int]],
) -> None:
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, version = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        is_tunnel = method == "CONNECT"
        host, port, path = _parse_target(target, is_tunnel=is_tunnel)
    except (asyncio.LimitOverrunError, ValueError):
        await _refuse(writer, 400, "expected a request for a proxy")
        return
    try:
        server_reader, server_writer = await _connect(host, port, is_source=(host, port) in sources)
    except AddressRefused as error:
        await _refuse(writer, 403, str(error))
        return
    except (OSError, TimeoutError) as error:
        await _refuse(writer, 502, f"{host}:{port} cannot be reached: {error or 'no answer'}")
        return
    try:
        if is_tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server_writer.write(_own_head(head, f"{method} {path} {version}"))
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
    finally:
        server_writer.close()


def _parse_target(target: str, *, is_tunnel: bool) -> tuple[str, int, str]:
    """Return host, port and path of a request. Raises `ValueError`."""
    parts = urlsplit(f"//{target}" if is_tunnel else target)
    if not parts.hostname or parts.username or (not is_tunnel and parts.scheme != "http"):
        raise ValueError(target)
    port = parts.port or (443 if is_tunnel else 80)
    path = parts.path or "/"
    return parts.hostname, port, f"{path}?{parts.query}" if parts.query else path


def _own_head(head: bytes, first: str) -> bytes:
    """Return the head for the server. One request a connection, so that each one names its own server."""
    lines = head.rstrip(b"\r\n").split(b"\r\n")[1:]
    kept = [line for line in lines if not line.lower().startswith(_HOP_HEADERS)]
    return b"\r\n".join([first.encode("latin-1"), *kept, b"Connection: close", b"", b""])


async def _connect(
    host: str, port: int, *, is_source: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of a host that a build may reach. Raises `AddressRefused`, `OSError`."""
    if port not in _PORTS and not is_source:
        raise AddressRefused(f"{host}:{port}: expected port 80 or 443, as for all builds")
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    allowed = [one for one in addresses if can_reach(one, is_source=is_source)]
    if not allowed:
        raise AddressRefused(
            f"{host}:{port} is of this machine or of a private network, which a build does not reach"
        )
    return await _connect_first(allowed, port)


async def _connect_first(
    addresses: list[str], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    failure: OSError = OSError("no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(address, port)
        except OSError as error:
            failure = error
    raise failure


def can_reach(address: str, *, is_source: bool = False) -> bool:
    """Return whether a build may reach an address: a public one, which is not of this machine.

    `is_source`: packages come from there, and it may be of a private network.
    """
    parsed = _unwrap(ipaddress.ip_address(address.partition("%")[0]))
    if _is_special(parsed) or _is_of_this_machine(parsed):
        return False
    return is_source or _is_public(parsed)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _is_special(address: _Address) -> bool:
    """Return whether an address is of the machine or the link by its form, or of a metadata service."""
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return True
    return address.is_multicast or address in _METADATA_SERVICES


def _is_public(address: _Address) -> bool:
    return address.is_global and (address.version == 4 or address in _PUBLIC_V6)


def _unwrap(address: _Address) -> _Address:
    """Return the address of IPv4 that one of IPv6 stands for (mapped, NAT64, 6to4), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_of_this_machine(address: _Address) -> bool:
    """Return whether an interface of this machine may have an address: only then it can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        # Without IPv6, nothing has such an address, and nothing is reached by one.
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    body = f"{message}\n".encode()
    writer.write(
        f"HTTP/1.1 {status} refused\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
