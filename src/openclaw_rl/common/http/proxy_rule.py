"""The proxy of a request: none on this machine, else the one that the environment names.

Requests of the package carry its keys, and most go to its own gateway and engine. A proxy cannot reach those, and
must not read them.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

DIRECT_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Hosts that programs which the package starts find in NO_PROXY."""
_NO_PROXY_NAMES = ("no_proxy", "NO_PROXY")
_PROXY_NAMES = frozenset({"http_proxy", "https_proxy", "all_proxy"})


def proxy_for(url: str) -> str | None:
    """Return the proxy for a request to `url`, or None for a direct connection.

    The environment is read as urllib reads it: `http_proxy`, `https_proxy` and `no_proxy`, in either case.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_on_this_machine(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def is_on_this_machine(host: str) -> bool:
    """Return whether `host` is a loopback name, or an address of this machine. Other names are not resolved."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _read_address(name)
    if address is None:
        return False
    return address.is_loopback or address.is_unspecified or _can_bind(address)


def with_direct_hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of another program, whose proxies, if it has any, are not for loopback."""
    changed = dict(environment)
    if not any(name.lower() in _PROXY_NAMES and value for name, value in changed.items()):
        return changed
    # Programs that read both names prefer the one or the other.
    listed = [
        host.strip()
        for name in _NO_PROXY_NAMES
        for host in changed.get(name, "").split(",")
        if host.strip()
    ]
    hosts = "*" if "*" in listed else ",".join(dict.fromkeys([*listed, *DIRECT_HOSTS]))
    return changed | dict.fromkeys(_NO_PROXY_NAMES, hosts)


def _read_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return _read_short_address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _read_short_address(name: str) -> ipaddress.IPv4Address | None:
    """Return the address of the forms that connections accept besides, such as 127.1; None for a name."""
    if not name or not set(name) <= set("0123456789abcdefx."):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError:
        return None


def _can_bind(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether the address is one of this machine's."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return not address.is_multicast
