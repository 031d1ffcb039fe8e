"""Versions loaded into a remote server: their names there, and the replies that still use them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from openclaw_rl.errors import EngineError
from openclaw_rl.types import PolicyRef

VersionKey = tuple[int, str]
"""(version, digest)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version as it is loaded into the server. Without adapter and weights: the plain base."""

    ref: PolicyRef
    adapter: str | None = None  # name of the LoRA adapter on the server
    weights: str | None = None  # name of the full weights on the server; None: those of the base
    source: PolicyRef | None = None  # policy whose files the adapter has, if not `ref`

    @property
    def version_key(self) -> VersionKey:
        return self.ref.version, self.ref.digest

    @property
    def adapter_files(self) -> PolicyRef:
        return self.source or self.ref

    @property
    def is_plain_base(self) -> bool:
        return self.adapter is None and self.weights is None


def owner_of(home: Path) -> str:
    """Return 8 hex digits that identify this home on this host, for servers that several gateways share."""
    return sha256(f"{socket.gethostname()}\0{home.absolute()}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def adapter_name(ref: PolicyRef, owner: str = "") -> str:
    """Return a name that is unique to version and content, so that no cache on the server can be stale.

    `owner` keeps gateways that share a server from unloading each other's adapters.
    """
    return f"openclaw-{ref.version}-{ref.digest[:16]}{owner and '-'}{owner}"


class VersionTable:
    """Versions loaded over one connection: at most `cap`, including those that are still in use."""

    def __init__(self, cap: int) -> None:
        self._max_versions = cap
        base = LoadedVersion(ref=PolicyRef(version=0, path=None, digest=""))
        self._loaded: dict[int, LoadedVersion] = {0: base}
        self._use_counts: Counter[LoadedVersion] = Counter()
        self.adapters: set[str] = set()  # on the server, also those of versions that drain

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._loaded))

    @property
    def running_replies(self) -> int:
        return self._use_counts.total()

    @property
    def plain_base_replies(self) -> int:
        """Number of replies that use the plain base."""
        return sum(n for held, n in self._use_counts.items() if held.is_plain_base)

    def look_up(self, version: int) -> LoadedVersion:
        """Return the loaded version. Raises `EngineError` if it is not loaded."""
        if version not in self._loaded:
            raise EngineError(f"version {version} is not loaded; loaded are: {list(self.versions)}")
        return self._loaded[version]

    def check_capacity(self, policies: Sequence[PolicyRef]) -> None:
        """Raise `EngineError` if these versions and those still in use are more than `engine.max_loaded_versions`."""
        named = {(p.version, p.digest) for p in policies}
        if len({p.version for p in policies}) != len(policies):
            raise EngineError(f"load received a version twice: {[p.version for p in policies]}")
        draining = {held.version_key for held in self._use_counts} - named
        if len(named | draining) > self._max_versions:
            still = f" and {sorted(v for v, _ in draining)} still answering" if draining else ""
            raise EngineError(
                f"versions {sorted(p.version for p in policies)} requested{still}; "
                f"engine.max_loaded_versions is {self._max_versions}. Try again when a reply has ended, or raise "
                "engine.max_loaded_versions"
            )

    def find_loaded(self, ref: PolicyRef) -> LoadedVersion | None:
        """Return the loaded version with this digest, or None."""
        held = self._loaded.get(ref.version)
        return held if held is not None and held.ref == ref else None

    def replace_versions(self, held: Mapping[int, LoadedVersion]) -> None:
        """Serve exactly these versions from now on."""
        self._loaded = dict(held)

    def begin_use(self, held: LoadedVersion) -> None:
        self._use_counts[held] += 1

    def end_use(self, held: LoadedVersion) -> None:
        self._use_counts[held] -= 1
        if self._use_counts[held] <= 0:
            del self._use_counts[held]

    @property
    def unused_adapters(self) -> set[str]:
        """Adapters that can be unloaded: of no loaded version, and used by no reply."""
        return self.adapters - {held.adapter for held in (*self._loaded.values(), *self._use_counts)}
