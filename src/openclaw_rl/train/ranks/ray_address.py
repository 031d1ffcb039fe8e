"""Address of a Ray head, and whether anything answers there. Ray's own client waits a quarter of an hour for a head."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from openclaw_rl.settings.load import foreign_environment

_CONNECT_SECONDS = 5.0


def find_address(address: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the address that Ray takes for `train.launch.ray`: for `auto`, RAY_ADDRESS if it is set."""
    if address != "auto":
        return address
    variables = foreign_environment({}) if environ is None else environ
    return variables.get("RAY_ADDRESS") or address


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return host and port of an address that has both; None for `auto`, `local`, and what Ray refuses by itself."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    # Such as the address of a dashboard.
    if "/" in host:
        return None
    return (
        (host.strip("[]"), int(port)) if host and port.isdecimal() and int(port) < 2**16 else None
    )


def connection_problem(address: str) -> str | None:
    """Return what is wrong if nothing answers at host and port of an address; None if something does, or without them.

    `address`: as of `find_address`.
    """
    target = host_and_port(address)
    if target is None:
        return None
    try:
        socket.create_connection(target, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return f"no head answers at {target[0]}:{target[1]} ({error.strerror or error})"
    return None
