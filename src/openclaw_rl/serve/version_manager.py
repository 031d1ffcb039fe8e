"""Choose the policy version for each request, and load versions into the engine. No request waits for a hot swap."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from openclaw_rl.common.logging_metrics import Metrics
from openclaw_rl.errors import EngineError, EngineGone, RequestError, StoreError
from openclaw_rl.protocols import Engine
from openclaw_rl.serve.chat_request import ReplyFailed
from openclaw_rl.store import policies
from openclaw_rl.store.db import Store
from openclaw_rl.types import Policy, PolicyState

log = logging.getLogger(__name__)

POLL = 0.1  # seconds between reads of the head
_BACK_OFF = 0.25  # seconds until a failed load is retried
_DISTRUST = 5.0  # seconds until a version that the engine refused is retried
_SERVABLE = frozenset({PolicyState.LIVE, PolicyState.ROLLED_BACK})


def plan(
    *, loaded: frozenset[int], serving: int, head: int, held: Counter[int], idle: list[int], cap: int
) -> list[int]:
    """Return the versions that the engine should load, at most `cap`.

    Versions in use and the serving version stay. Then come the head, pinned versions that requests wait for, and idle
    versions, most recently used first. At the cap, the head waits instead of the requests.
    """
    keep = [v for v in loaded if held[v] > 0 or v == serving]
    wanted = [head, *(v for v in held if held[v] > 0), *reversed(idle)]
    for version in wanted:
        if version not in keep and len(keep) < cap:
            keep.append(version)
    return sorted(keep)


class Versions:
    """Keeps the engine's versions up to date. A new request gets the newest loaded head; a reply keeps its version."""

    def __init__(self, store: Store, engine: Engine, *, cap: int, metrics: Metrics) -> None:
        self._store, self._engine, self._cap, self._metrics = store, engine, cap, metrics
        self._known: dict[int, Policy] = {}
        self._loaded: frozenset[int] = frozenset()
        self._held: Counter[int] = Counter()  # number of replies that run on a version or wait for it
        self._idle: OrderedDict[int, None] = OrderedDict()  # loaded but unused; most recently used last
        self._refused: dict[int, tuple[str, float]] = {}  # versions the engine refused: (reason, loop time of a retry)
        self._stale = True  # whether the engine's loaded versions may differ from `_loaded`
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self.on_loaded: Callable[[], Awaitable[None]] | None = None
        self.head = 0
        self.serving = 0
        self.trouble: str | None = "the engine has not answered yet"
        self._met = False  # whether the engine has answered once; until then it is starting

    # Called by requests.

    def take(self) -> int:
        """Acquire the version for a new request. The caller releases it with `release`."""
        self._held[self.serving] += 1
        return self.serving

    def take_again(self, version: int) -> None:
        """Acquire an already acquired version once more, for another reply to the same request."""
        self._held[version] += 1

    async def take_pinned(self, version: int) -> int:
        """Acquire the version that the client named. Raises `RequestError` (404) if it cannot be served."""
        if version not in self._known:
            found = await asyncio.to_thread(self._read_policy, version)
            if found is None or found.state not in _SERVABLE:
                raise RequestError(
                    f"version {version} {'was rejected' if found else 'does not exist'}; the newest is {self.head}.",
                    param="model",
                    code="version_not_found",
                    status=404,
                )
            self._known[version] = found
        self._held[version] += 1
        if version not in self._loaded:
            self._wake.set()
        return version

    def release(self, version: int) -> None:
        self._held[version] -= 1
        if self._held[version] <= 0:
            del self._held[version]
            self._idle[version] = None
            self._idle.move_to_end(version)
            if self.head != self.serving:
                self._wake.set()

    async def ready(self, version: int, deadline: float, *, pinned: bool) -> int:
        """Wait until the engine has loaded `version`, and return the version to use.

        If the engine cannot load `version` and the client did not pin it, `version` is released, and another one is
        acquired and returned. Raises `ReplyFailed` (503) at `deadline` (loop time).
        """
        loop = asyncio.get_running_loop()
        while version not in self._loaded:
            if version in self._refused and (pinned or self.serving in self._loaded):
                if pinned:
                    why = self._refused[version][0]
                    raise ReplyFailed(f"version {version} cannot be loaded: {why}", status=503, code="version_broken")
                self.release(version)
                return self.take()
            try:
                await asyncio.wait_for(self._news.wait(), max(deadline - loop.time(), 0.001))
            except TimeoutError:
                raise ReplyFailed(
                    f"the engine does not answer ({self.trouble or f'version {version} is not loaded yet'}). "
                    "Try again in a moment; `openclaw-rl status` shows the engine.",
                    status=503,
                    code="engine_unavailable",
                ) from None
        return version

    def is_loaded(self, version: int) -> bool:
        return version in self._loaded

    def lost(self, why: str = "the engine was restarted") -> None:
        """Record that the engine is gone or was restarted, so that all versions are loaded again."""
        self._loaded, self._stale, self.trouble = frozenset(), True, why
        self._metrics.engine_up.set(0)
        self._wake.set()

    # The background task.

    async def run(self) -> None:
        """Keep the engine's versions up to date until cancelled.

        Consumes: the head in the store; versions that requests need. Produces: `Engine.load`, `serving`.
        Waits for: a new head, a pinned version, a drained one, a lost engine. Unblocked by: a poll, or `_wake_event`.
        """
        while True:
            self._wake.clear()
            try:
                if await asyncio.to_thread(self._read_head):
                    log.info("the head is version %d", self.head)
                pause = POLL if await self._settle() else _BACK_OFF
            except StoreError as error:  # loaded versions continue to answer
                log.error("the head cannot be read: %s", error)
                self.trouble, pause = str(error), _BACK_OFF
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                continue

    def _read_policy(self, version: int) -> Policy | None:
        with self._store.read() as conn:
            return policies.get(conn, version)

    def _read_head(self) -> bool:
        """Read the head from the store. Returns whether it has moved."""
        if self._known and not self._store.changed():
            return False
        with self._store.read() as conn:
            found = policies.head(conn)
        moved = found.version != self.head or not self._known
        if not self._known:
            self.serving = found.version
        self._known[found.version] = found
        self.head = found.version
        self._metrics.head.set(self.head)
        self._metrics.trained.tell(found.version, found.metrics)
        return moved

    async def _settle(self) -> bool:
        """Load the planned versions. Returns False if the engine refused one or is gone."""
        self._forgive()
        target = await self._target()
        wanted = plan(
            loaded=self._loaded,
            serving=self.serving,
            head=target,
            held=Counter({v: n for v, n in self._held.items() if v not in self._refused}),
            idle=[v for v in self._idle if v in self._known and v not in self._refused],
            cap=self._cap,
        )
        if frozenset(wanted) == self._loaded and not self._stale:
            if self.serving != target and target in self._loaded:
                self._switch(wanted, target)
            return True
        self._loaded &= frozenset(wanted)  # versions to be unloaded take no new requests
        self._stale = False
        try:
            loaded = await self._load(wanted)
            if self.on_loaded is not None:
                await self.on_loaded()
        except EngineError as error:
            self._failed(error)
            return False
        self._switch(loaded, target)
        return loaded == wanted

    async def _load(self, wanted: list[int]) -> list[int]:
        """Load `wanted` and return the loaded versions. If the engine refuses them together, load them one by one."""
        try:
            await self._engine.load([self._known[v].ref for v in wanted])
            return wanted
        except EngineGone:
            raise
        except EngineError as error:
            if len(wanted) == 1:
                self._refuse(wanted[0], error)
                raise
        held = [v for v in wanted if v in self._loaded]
        for version in (v for v in wanted if v not in self._loaded):
            try:
                await self._engine.load([self._known[v].ref for v in (*held, version)])
                held.append(version)
            except EngineGone:
                raise
            except EngineError as error:
                self._refuse(version, error)
        return sorted(held)

    def _refuse(self, version: int, error: EngineError) -> None:
        if version not in self._refused:
            log.warning("version %d is not loaded: %s", version, error)
        self._refused[version] = (str(error), asyncio.get_running_loop().time() + _DISTRUST)

    def _forgive(self) -> None:
        now = asyncio.get_running_loop().time()
        for version in [v for v, (_, until) in self._refused.items() if until < now]:
            del self._refused[version]

    async def _target(self) -> int:
        """Return the head or its nearest ancestor that was not refused: a broken adapter must not stop the service."""
        target = self.head
        while target in self._refused and (parent := self._known[target].parent) is not None:
            if parent not in self._known:
                found = await asyncio.to_thread(self._read_policy, parent)
                assert found is not None, "every parent is in the store"
                self._known[parent] = found
            target = parent
        return target

    def _failed(self, error: EngineError) -> None:
        if str(error) != self.trouble:
            starting = isinstance(error, EngineGone) and not self._met
            log.log(logging.INFO if starting else logging.WARNING, "versions are not loaded yet: %s", error)
        self._stale, self.trouble = True, str(error)
        if isinstance(error, EngineGone):
            self._loaded = frozenset()
            self._metrics.engine_up.set(0)
        self._tell()

    def _switch(self, loaded: Sequence[int], target: int) -> None:
        self._loaded, self._met = frozenset(loaded), True
        self.trouble = self._refused[self.head][0] if self.head in self._refused else None
        if target in self._loaded and self.serving != target:
            log.info("version %d answers now; was %d", target, self.serving)
            self._idle[self.serving] = None
            self.serving = target
        for version in [v for v in self._idle if v not in self._loaded]:
            del self._idle[version]
        self._metrics.engine_up.set(1)
        self._metrics.version.set(self.serving)
        self._tell()

    def _tell(self) -> None:
        """Wake the waiting requests."""
        self._news.set()
        self._news = asyncio.Event()
