"""Addresses of a home's running gateway and page, in files that these workers keep locked while they listen.

Also the keys by which the home's own programs know one another, and the path at which the trainer asks the gateway for
the replies that the gate compares.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

FILE_NAME = "gateway.json"
PAGE_FILE_NAME = "page.json"
HOME_KEY_PREFIX = "sk-home-"
GATE_REPLY_PATH = "/internal/gate/replies"
"""Path of the replies for the gate, which no client can ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAddress:
    """Where a gateway listens, and what a client needs to know besides."""

    url: str  # for clients on this machine, without a path
    model: str  # the `model` name for clients
    model_path: str  # the base model: an absolute folder, or a hub id
    # The source of its API key: `serve.api_key`, or the file of the home.
    key: Literal["settings", "file"]
    pid: int
    method: str = ""  # `train.method` of the gateway's settings; "" from an earlier release


def gate_key(secret: bytes) -> str:
    """Return the key of the requests for the gate. `secret`: of the store, so that only its readers know the key."""
    return hashlib.blake2b(secret, digest_size=24, person=b"openclaw-gate").hexdigest()


def home_key(secret: bytes) -> str:
    """Return the key of commands on the home: the first API key's, to which every version answers.

    `secret`: of the store, so that only its readers know the key.
    """
    digest = hashlib.blake2b(secret, digest_size=24, person=b"openclaw-home").hexdigest()
    return f"{HOME_KEY_PREFIX}{digest}"


def page_key(secret: bytes) -> str:
    """Return the key by which the page knows that a request comes through the gateway. `secret`: of the store."""
    return hashlib.blake2b(secret, digest_size=24, person=b"openclaw-page").hexdigest()


@contextmanager
def publish_address(home: Path, address: GatewayAddress) -> Iterator[None]:
    """Write the gateway's address to the home, and keep the file locked until the block ends."""
    with _publish(home / FILE_NAME, asdict(address)):
        yield


@contextmanager
def publish_page(home: Path, port: int) -> Iterator[None]:
    """Write the port at which the page listens on 127.0.0.1, and keep the file locked until the block ends."""
    with _publish(home / PAGE_FILE_NAME, {"port": port}):
        yield


@contextmanager
def _publish(path: Path, data: Mapping[str, Any]) -> Iterator[None]:
    """Write a file at once and whole, and keep it locked until the block ends.

    The kernel releases the lock when the process ends, whatever ends it: a file without a lock is stale.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(data, file)
        file.flush()
        temporary.replace(path)
        yield


def running_address(home: Path) -> GatewayAddress | None:
    """Return the address of the gateway that runs on the home, or None if none runs."""
    try:
        return GatewayAddress(**(_read_published(home / FILE_NAME) or {}))
    except TypeError:
        # Nothing is published, or another version wrote it.
        return None


def running_page(home: Path) -> int | None:
    """Return the port of the page that runs on the home, or None if none runs."""
    port = (_read_published(home / PAGE_FILE_NAME) or {}).get("port")
    return port if isinstance(port, int) else None


def _read_published(path: Path) -> dict[str, Any] | None:
    """Return what a running process has published, or None if none runs."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                data = json.load(file)
                return data if isinstance(data, dict) else None
    except (OSError, ValueError):
        # No file, or one that another version wrote.
        pass
    return None
