"""What a server that is not ours in memory was made to hold: versions, their names there, and who still answers."""

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
    """A version as the server knows it. Neither adapter nor weights: the base as it is."""

    ref: PolicyRef
    adapter: str | None = None  # the name of its LoRA adapter there
    weights: str | None = None  # the name of its full weights; None: the base's weights
    source: PolicyRef | None = None  # whose files the adapter is, where they are not the version's own

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
    """8 hex digits for this home on this machine: whose adapter it is, where several gateways share a server."""
    return sha256(f"{socket.gethostname()}\0{home.absolute()}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def adapter_name(ref: PolicyRef, owner: str = "") -> str:
    """The name on the server: another one for every version and content, so that no cache can be stale.

    `owner`: so that nobody lets go what another gateway has loaded.
    """
    return f"openclaw-{ref.version}-{ref.digest[:16]}{owner and '-'}{owner}"


class Holds:
    """The versions of one connection: at most `cap`, those that still answer included."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        base = Held(ref=PolicyRef(version=0, path=None, digest=""))
        self._loaded: dict[int, Held] = {0: base}
        self._running: Counter[Held] = Counter()
        self.adapters: set[str] = set()  # that are on the server, named or not

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._loaded))

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def plain_running(self) -> int:
        """Replies on the base as it is."""
        return sum(n for held, n in self._running.items() if held.plain)

    def look_up(self, version: int) -> Held:
        """Raises `EngineError` when the version is not loaded."""
        if version not in self._loaded:
            raise EngineError(f"version {version} is not loaded; these are: {list(self.versions)}")
        return self._loaded[version]

    def check_room(self, policies: Sequence[PolicyRef]) -> None:
        """Raises `EngineError` when these versions and those that still answer are more than are held side by side."""
        named = {(p.version, p.digest) for p in policies}
        if len({p.version for p in policies}) != len(policies):
            raise EngineError(f"load names a version twice: {[p.version for p in policies]}")
        draining = {held.key for held in self._running} - named
        if len(named | draining) > self._cap:
            still = f" and {sorted(v for v, _ in draining)} still answering" if draining else ""
            raise EngineError(
                f"{sorted(p.version for p in policies)} named{still}; engine.versions is {self._cap}. "
                "Try again when a reply has ended, or raise engine.versions"
            )

    def known(self, ref: PolicyRef) -> Held | None:
        """The version as it is loaded, if it is."""
        held = self._loaded.get(ref.version)
        return held if held is not None and held.ref == ref else None

    def change(self, held: Mapping[int, Held]) -> None:
        """Answer with exactly these from now on."""
        self._loaded = dict(held)

    def begin(self, held: Held) -> None:
        self._running[held] += 1

    def end(self, held: Held) -> None:
        self._running[held] -= 1
        if self._running[held] <= 0:
            del self._running[held]

    @property
    def unneeded(self) -> set[str]:
        """The adapters that may be let go: not named any more, and nothing answers on them."""
        return self.adapters - {held.adapter for held in (*self._loaded.values(), *self._running)}
