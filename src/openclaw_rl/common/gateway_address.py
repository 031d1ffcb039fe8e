"""Address of a home's running gateway, in a file that the gateway keeps locked while it listens.

Also the path and the key by which the trainer asks it for the replies that the gate compares.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE_NAME = "gateway.json"
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
    return f"sk-home-{digest}"


@contextmanager
def publish_address(home: Path, address: GatewayAddress) -> Iterator[None]:
    """Write the address to the home, at once and whole, and keep the file locked until the block ends.

    The kernel releases the lock when the process ends, whatever ends it: a file without a lock is stale.
    """
    temporary = home / f".{FILE_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(asdict(address), file)
        file.flush()
        temporary.replace(home / FILE_NAME)
        yield


def running_address(home: Path) -> GatewayAddress | None:
    """Return the address of the gateway that runs on the home, or None if none runs."""
    try:
        with (home / FILE_NAME).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return GatewayAddress(**json.load(file))
    except (OSError, ValueError, TypeError):
        # No file, or one that another version wrote.
        pass
    return None
