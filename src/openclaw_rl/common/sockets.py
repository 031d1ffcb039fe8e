"""Free TCP ports, loopback addresses, and Unix sockets left over from killed processes."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from openclaw_rl.errors import EngineError

# Bytes of a Unix socket path; the limit that every supported system allows.
_MAX_PATH_BYTES = 103


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for each address of `host`. Connections are refused until a server listens on them.

    Raises `OSError` if an address is in use or unknown.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            opened = socket.socket(family, kind, protocol)
            bound.append(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(address)
    except OSError:
        for opened in bound:
            opened.close()
        raise
    return bound


def is_loopback_host(host: str) -> bool:
    """Return whether a server that binds `host` can be reached from this machine only. Names are not resolved."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_socket_path(path: Path) -> None:
    """Raise `EngineError` if the path is too long for a socket."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise EngineError(
            f"{path}: a Unix socket path has at most {_MAX_PATH_BYTES} bytes. Choose a shorter `home`"
        )


def clear_socket(path: Path, *, owner: str = "engine") -> None:
    """Remove a stale socket. Raises `EngineError` if another `owner` answers on it or the path is too long."""
    check_socket_path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise EngineError(
                f"{path}: another {owner} answers there. Stop it, or choose another `home`"
            )
