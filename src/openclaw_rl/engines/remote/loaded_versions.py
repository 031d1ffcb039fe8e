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

Key = tuple[int, str]
"""(version, digest)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A version as it is loaded into the server. Without adapter and weights: the plain base."""

    ref: PolicyRef
    adapter: str | None = None  # name of the LoRA adapter on the server
    weights: str | None = None  # name of the full weights on the server; None: those of the base
    source: PolicyRef | None = None  # policy whose files the adapter has, if not `ref`

    @property
    def key(self) -> Key:
        return self.ref.version, self.ref.digest

    @property
    def files(self) -> PolicyRef:
        return self.source or self.ref

    @property
    def plain(self) -> bool:
        return self.adapter is None and self.weights is None


def owner_of(home: Path) -> str:
    """Return 8 hex digits that identify this home on this host, for servers that several gateways share."""
    return sha256(f"{socket.gethostname()}\0{home.absolute()}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def adapter_name(ref: PolicyRef, owner: str = "") -> str:
    """Return a name that is unique to version and content, so that no cache on the server can be stale.

    `owner` keeps gateways that share a server from unloading each other's adapters.
    """
    return f"openclaw-{ref.version}-{ref.digest[:16]}{owner and '-'}{owner}"


class Holds:
    """Versions loaded over one connection: at most `cap`, including those that are still in use."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        base = Held(ref=PolicyRef(version=0, path=None, digest=""))
        self._loaded: dict[int, Held] = {0: base}
        self._running: Counter[Held] = Counter()
        self.adapters: set[str] = set()  # on the server, also those of versions that drain

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._loaded))

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def plain_running(self) -> int:
        """Number of replies that use the plain base."""
        return sum(n for held, n in self._running.items() if held.plain)

    def look_up(self, version: int) -> Held:
        """Return the loaded version. Raises `EngineError` if it is not loaded."""
        if version not in self._loaded:
            raise EngineError(f"version {version} is not loaded; loaded are: {list(self.versions)}")
        return self._loaded[version]

    def check_room(self, policies: Sequence[PolicyRef]) -> None:
        """Raise `EngineError` if these versions and those still in use are more than `engine.versions`."""
        named = {(p.version, p.digest) for p in policies}
        if len({p.version for p in policies}) != len(policies):
            raise EngineError(f"load received a version twice: {[p.version for p in policies]}")
        draining = {held.key for held in self._running} - named
        if len(named | draining) > self._cap:
            still = f" and {sorted(v for v, _ in draining)} still answering" if draining else ""
            raise EngineError(
                f"versions {sorted(p.version for p in policies)} requested{still}; "
                f"engine.versions is {self._cap}. Try again when a reply has ended, or raise engine.versions"
            )

    def known(self, ref: PolicyRef) -> Held | None:
        """Return the loaded version with this digest, or None."""
        held = self._loaded.get(ref.version)
        return held if held is not None and held.ref == ref else None

    def change(self, held: Mapping[int, Held]) -> None:
        """Serve exactly these versions from now on."""
        self._loaded = dict(held)

    def begin(self, held: Held) -> None:
        self._running[held] += 1

    def end(self, held: Held) -> None:
        self._running[held] -= 1
        if self._running[held] <= 0:
            del self._running[held]

    @property
    def unneeded(self) -> set[str]:
        """Adapters that can be unloaded: of no loaded version, and used by no reply."""
        return self.adapters - {held.adapter for held in (*self._loaded.values(), *self._running)}
