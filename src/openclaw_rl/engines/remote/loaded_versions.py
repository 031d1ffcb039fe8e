"""Versions loaded into a remote server: their names there, and the replies that still use them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.base import BASE_POLICY, check_capacity
from openclaw_rl.errors import EngineError
from openclaw_rl.types import PolicyRef

_WEIGHTS_NAME = re.compile(r"^openclaw-\d+-[0-9a-f]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version as it is loaded into the server. Without adapter and weights: the plain base."""

    ref: PolicyRef
    adapter: str | None = None  # name of the LoRA adapter on the server
    weights: str | None = None  # name of the full weights on the server; None: those of the base
    source: PolicyRef | None = None  # policy whose files the adapter has, if not `ref`

    @property
    def adapter_files(self) -> PolicyRef:
        return self.source or self.ref

    @property
    def is_plain_base(self) -> bool:
        return self.adapter is None and self.weights is None


def owner_of(home: Path) -> str:
    """Return 8 hex digits that identify this home on this host, for servers that several gateways share."""
    return sha256(
        f"{socket.gethostname()}\0{home.absolute()}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:8]


def adapter_name(ref: PolicyRef, owner: str = "") -> str:
    """Return a name that is unique to version and content, so that no cache on the server can be stale.

    `owner` keeps gateways that share a server from unloading each other's adapters.
    """
    return f"openclaw-{ref.version}-{ref.digest[:16]}{owner and '-'}{owner}"


async def verify_version(ref: PolicyRef, owner: str) -> LoadedVersion:
    """Compare the version's files with their digest and return the version. Raises `EngineError`."""
    if ref.path is None:
        return LoadedVersion(ref=ref)
    if adapter_file.has_full_weights(Path(ref.path)):
        await asyncio.to_thread(adapter_file.check_full_weights, ref)
        return LoadedVersion(ref=ref, weights=adapter_name(ref))
    await asyncio.to_thread(adapter_file.read_adapter, ref)
    return LoadedVersion(ref=ref, adapter=adapter_name(ref, owner))


def full_weights_name(answer: Any) -> str:
    """Return the name of our full weights by a server's `weight_version`; "" if they are not ours, but the base's."""
    tag = str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""
    return tag if _WEIGHTS_NAME.match(tag) else ""


class VersionTable:
    """Versions loaded over one connection: at most `cap`, including those that are still in use."""

    def __init__(self, cap: int) -> None:
        self._max_versions = cap
        self.loaded: dict[int, LoadedVersion] = {0: LoadedVersion(ref=BASE_POLICY)}
        self._use_counts: Counter[LoadedVersion] = Counter()
        # On the server, also those of versions that drain.
        self.adapters: set[str] = set()

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self.loaded))

    @property
    def running_replies(self) -> int:
        return self._use_counts.total()

    @property
    def plain_base_replies(self) -> int:
        """Number of replies that use the plain base."""
        return sum(n for loaded, n in self._use_counts.items() if loaded.is_plain_base)

    def look_up(self, version: int) -> LoadedVersion:
        """Return the loaded version. Raises `EngineError` if it is not loaded."""
        if version not in self.loaded:
            raise EngineError(f"version {version} is not loaded; loaded are: {list(self.versions)}")
        return self.loaded[version]

    def check_capacity(self, policies: Sequence[PolicyRef]) -> None:
        """Raise `EngineError` if these versions and those still in use are more than `engine.max_loaded_versions`."""
        in_use = [(loaded.ref.version, loaded.ref.digest) for loaded in self._use_counts]
        check_capacity(policies, in_use, self._max_versions)

    def find_loaded(self, ref: PolicyRef) -> LoadedVersion | None:
        """Return the loaded version with this digest, or None."""
        loaded = self.loaded.get(ref.version)
        return loaded if loaded is not None and loaded.ref == ref else None

    def begin_use(self, loaded: LoadedVersion) -> None:
        self._use_counts[loaded] += 1

    def end_use(self, loaded: LoadedVersion) -> None:
        self._use_counts[loaded] -= 1
        if self._use_counts[loaded] <= 0:
            del self._use_counts[loaded]

    @property
    def unused_adapters(self) -> set[str]:
        """Adapters that can be unloaded: of no loaded version, and used by no reply."""
        return self.adapters - {
            loaded.adapter for loaded in (*self.loaded.values(), *self._use_counts)
        }
