"""Choose the policy version for each request, and load versions into the engine. No request waits for a hot swap."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import (
    EngineError,
    EngineFull,
    EngineGone,
    RequestError,
    StoreError,
)
from openclaw_rl.protocols import Engine
from openclaw_rl.serve.chat_request import ReplyFailed
from openclaw_rl.serve.gate.canary import is_chosen
from openclaw_rl.serve.versions.place_queue import PlaceQueue, plan_versions
from openclaw_rl.serve.versions.stored_heads import StoredHeads
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.types import Policy, PolicyState

log = logging.getLogger(__name__)

# Seconds between reads of the head.
POLL_SECONDS = 0.1
# Seconds until a failed load is retried.
_LOAD_RETRY_SECONDS = 0.25
# Seconds until a version that the engine refused is retried.
_REFUSED_RETRY_SECONDS = 5.0
_SERVABLE_STATES = frozenset({PolicyState.LIVE, PolicyState.ROLLED_BACK})


def unservable_reason(policy: Policy | None, *, for_gate: bool = False) -> str | None:
    """Return why a version cannot be served, or None. `policy`: None if unknown. `for_gate`: a candidate can."""
    if policy is None:
        return "does not exist"
    if policy.state is PolicyState.CANDIDATE:
        return None if for_gate else "is a candidate that the gate has not decided on"
    if policy.state not in _SERVABLE_STATES:
        return "was rejected"
    return "was removed to save space" if policies.is_removed(policy) else None


class VersionManager:
    """Keeps the engine's versions up to date. A new request gets the newest loaded head; a reply keeps its version."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        cap: int,
        metrics: GatewayMetrics,
        has_changed: Callable[[], bool] | None = None,
    ) -> None:
        """`has_changed` returns whether the head may have moved since its last call; None: after any commit.

        It is called in threads.
        """
        self._stored = StoredHeads(store, metrics, has_changed or store.has_changed)
        self._engine = engine
        self._max_loaded = cap
        self._metrics = metrics
        self._loaded: frozenset[int] = frozenset()
        # Number of replies that run on a version or wait for it.
        self._in_use: Counter[int] = Counter()
        # Loaded but unused; most recently used last.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._places = PlaceQueue()
        # Versions the engine refused: (reason, loop time of a retry).
        self._refusals: dict[int, tuple[str, float]] = {}
        # Whether the engine's loaded versions may differ from `_loaded`.
        self._out_of_sync = True
        self._wake_event = asyncio.Event()
        self._changed_event = asyncio.Event()
        self.on_loaded: Callable[[], Awaitable[None]] | None = None
        # None: the store was not read yet.
        self._serving: int | None = None
        # Policies of one's own -> serving version; last used last.
        self._recent: OrderedDict[str, int] = OrderedDict()
        # Versions whose files match their digests and that the engine has not loaded yet.
        self._sound: set[int] = set()
        self.problem: str | None = "the engine has not answered yet"
        # Whether the engine has answered once; until then it is starting.
        self._has_connected = False

    @property
    def head(self) -> int:
        """The newest version of the default policy."""
        return self._stored.head

    @property
    def serving(self) -> int:
        """The version of the default policy that answers new requests."""
        return 0 if self._serving is None else self._serving

    # Called by requests.

    def acquire_current(
        self, policy: str = DEFAULT_NAME, conversation: Callable[[], bytes] = bytes
    ) -> int:
        """Acquire the version for a new request to a policy. The caller releases it with `release`.

        If the engine has loaded no version of a policy of one's own, its head is loaded while the request waits.
        `conversation` returns what decides whether a canary answers, so that it answers whole conversations.
        """
        version = self.serving if policy == DEFAULT_NAME else self._choose_version(policy)
        canary = self._stored.canaries.get(policy)
        if (
            canary is not None
            and canary.version in self._loaded
            and is_chosen(canary, conversation())
        ):
            version = canary.version
        self._in_use[version] += 1
        if version not in self._loaded:
            self._wake_event.set()
        return version

    def _choose_version(self, policy: str) -> int:
        """Return the newest loaded version of a policy of one's own, else its head."""
        # The store was never read: the head will be loaded first.
        if not self._stored.was_read:
            return self.serving
        head = self._stored.head_of(policy)
        serving = self._recent.get(policy, head)
        chosen = head if head in self._loaded or serving not in self._loaded else serving
        self._recent[policy] = chosen
        self._recent.move_to_end(policy)
        while len(self._recent) > self._max_loaded:
            self._recent.popitem(last=False)
        if head not in self._loaded:
            self._wake_event.set()
        return chosen

    def acquire_again(self, version: int) -> None:
        """Acquire an already acquired version once more, for another reply to the same request."""
        self._in_use[version] += 1

    async def acquire_version(self, version: int, *, for_gate: bool = False) -> int:
        """Acquire the version that the client named. Raises `RequestError` (404) if it cannot be served.

        `for_gate`: the client is the gate, for which candidates are loaded, too.
        """
        if version not in self._loaded or version in self._stored.candidates:
            policy = await asyncio.to_thread(self._stored.read_policy, version)
            if (reason := unservable_reason(policy, for_gate=for_gate)) is not None:
                raise RequestError(
                    f"version {version} {reason}; the newest is {self.head}.",
                    param="model",
                    code="version_not_found",
                    status=404,
                )
            assert policy is not None
            self._stored.add(policy)
        self._in_use[version] += 1
        if version not in self._loaded:
            self._wake_event.set()
        return version

    def release(self, version: int) -> None:
        self._in_use[version] -= 1
        if self._in_use[version] <= 0:
            del self._in_use[version]
            self._idle[version] = None
            self._idle.move_to_end(version)
        if self.head != self.serving or not self._places.is_empty:
            self._wake_event.set()

    async def wait_loaded(self, version: int, deadline: float, *, pinned: bool) -> int:
        """Wait until the engine has loaded `version`, and return the version to use.

        If the engine cannot load `version` and the client did not pin it, `version` is released, and its nearest
        ancestor that can be loaded is acquired and returned. Raises `ReplyFailed` (503) at `deadline` (loop time).
        """
        while not self.is_loaded(version):
            if version in self._refusals:
                if pinned:
                    reason = self._refusals[version][0]
                    raise ReplyFailed(
                        f"version {version} cannot be loaded: {reason}",
                        status=503,
                        code="version_broken",
                    )
                ancestor = await self._loadable_version(version)
                if ancestor not in self._refusals:
                    self.release(version)
                    self._in_use[ancestor] += 1
                    version = ancestor
                    self._wake_event.set()
                    continue
            with self._places.wait_for(version, asyncio.get_running_loop().time()):
                await self._wait_change(version, deadline)
        return version

    async def _wait_change(self, version: int, deadline: float) -> None:
        """Wait until `version` takes requests or was refused."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._changed_event.wait()
                    if self.is_loaded(version) or version in self._refusals:
                        return
        except TimeoutError:
            raise ReplyFailed(
                f"the engine does not answer ({self.problem or f'version {version} is not loaded yet'}). "
                "Try again in a moment; `openclaw-rl status` shows the engine.",
                status=503,
                code="engine_unavailable",
            ) from None

    def is_loaded(self, version: int) -> bool:
        """Return whether a version is loaded and takes new requests."""
        return version in self._loaded and version not in self._places.leaving

    def mark_lost(self, reason: str = "the engine was restarted") -> None:
        """Record that the engine is gone or was restarted, so that all versions are loaded again."""
        self._loaded = frozenset()
        self._out_of_sync = True
        self.problem = reason
        self._metrics.engine_up.set(0)
        self._wake_event.set()

    # The background task.

    async def run(self) -> None:
        """Keep the engine's versions up to date until cancelled.

        Consumes: the head in the store; versions that requests need. Produces: `Engine.load`, `serving`.
        Waits for: a new head, a pinned version, a drained one, a lost engine. Unblocked by: a poll, or `_wake_event`.
        """
        while True:
            self._wake_event.clear()
            try:
                if await asyncio.to_thread(self._stored.refresh, self._in_use):
                    log.debug("the head is version %d", self.head)
                if self._serving is None:
                    self._serving = self.head
                pause = POLL_SECONDS if await self._load_planned() else _LOAD_RETRY_SECONDS
                if self.serving != self._stored.recorded:
                    await asyncio.to_thread(self._stored.record_serving, self.serving)
            except StoreError as error:
                # Loaded versions continue to answer.
                log.error("the head cannot be read: %s", error)
                self.problem = str(error)
                pause = _LOAD_RETRY_SECONDS
            try:
                # `wait_for` loses a cancellation that comes with the event.
                async with asyncio.timeout(pause):
                    await self._wake_event.wait()
            except TimeoutError:
                continue

    async def _load_planned(self) -> bool:
        """Load the planned versions. Returns False if the engine refused one or is gone."""
        now = asyncio.get_running_loop().time()
        self._refusals = {v: refusal for v, refusal in self._refusals.items() if refusal[1] >= now}
        target = await self._loadable_version(self.head)
        others = [
            (serving, await self._loadable_version(self._stored.head_of(name)))
            for name, serving in reversed(list(self._recent.items()))
        ]
        canaries = [
            canary.version
            for canary in self._stored.canaries.values()
            if canary.version not in self._refusals
        ]
        in_use = Counter({v: n for v, n in self._in_use.items() if v not in self._refusals})
        keep = {self.serving, target}
        if self._places.choose_leaving(
            in_use, loaded=self._loaded, keep=keep, cap=self._max_loaded, now=now
        ):
            self._notify_waiters()
        wanted = plan_versions(
            loaded=self._loaded,
            serving=self.serving,
            head=target,
            in_use=self._places.in_order(in_use),
            drained=self._places.drained(in_use),
            idle=[v for v in self._idle if self._stored.knows(v) and v not in self._refusals],
            cap=self._max_loaded,
            others=[*zip(canaries, canaries, strict=True), *others],
        )
        if frozenset(wanted) == self._loaded and not self._out_of_sync:
            if self.serving != target and target in self._loaded:
                self._switch_serving(wanted, target)
            return True
        # Versions to be unloaded take no new requests.
        self._loaded &= frozenset(wanted)
        self._out_of_sync = False
        try:
            loaded = await self._load_versions(wanted)
            if self.on_loaded is not None:
                await self.on_loaded()
        except EngineError as error:
            self._record_failure(error)
            return False
        self._switch_serving(loaded, target)
        return loaded == wanted

    async def _load_versions(self, wanted: list[int]) -> list[int]:
        """Load `wanted` and return the loaded versions. If the engine refuses them together, load them one by one.

        Versions whose files do not match their digests are left out.
        """
        for version in [v for v in wanted if v not in self._loaded and v not in self._sound]:
            if (damage := await asyncio.to_thread(self._stored.examine_files, version)) is not None:
                self._record_refusal(version, EngineError(damage))
                wanted = [v for v in wanted if v != version]
                if not wanted:
                    raise EngineError(f"version {version}: {damage}")
            else:
                self._sound.add(version)
        for version in wanted:
            await self._stored.find(version)
        try:
            await self._engine.load([self._stored.known(v).ref for v in wanted])
            self._sound.clear()
            return wanted
        except EngineGone:
            raise
        except EngineError as error:
            if len(wanted) == 1:
                await self._examine_refused(wanted[0], error)
                self._record_refusal(wanted[0], error)
                raise
        kept_loaded = [v for v in wanted if v in self._loaded]
        for version in (v for v in wanted if v not in self._loaded):
            try:
                await self._engine.load(
                    [self._stored.known(v).ref for v in (*kept_loaded, version)]
                )
                kept_loaded.append(version)
            except EngineGone:
                raise
            except EngineError as error:
                await self._examine_refused(version, error)
                self._record_refusal(version, error)
        return sorted(kept_loaded)

    async def _examine_refused(self, version: int, error: EngineError) -> None:
        """Read all files of a version that the engine refuses for the first time, so that damage is recorded."""
        if version not in self._refusals and not isinstance(error, EngineFull):
            await asyncio.to_thread(self._stored.examine_files, version, trusts_known=False)

    def _record_refusal(self, version: int, error: EngineError) -> None:
        # It has a place when a reply has ended.
        if isinstance(error, EngineFull):
            log.debug("version %d waits: %s", version, error)
            return
        if version not in self._refusals:
            log.warning("version %d is not loaded: %s", version, error)
        self._sound.discard(version)
        self._refusals[version] = (
            str(error),
            asyncio.get_running_loop().time() + _REFUSED_RETRY_SECONDS,
        )

    async def _loadable_version(self, version: int) -> int:
        """Return the version, or its nearest ancestor that was not refused.

        A broken adapter must not stop the service.
        """
        while (
            version in self._refusals
            and (parent := (await self._stored.find(version)).parent) is not None
        ):
            version = parent
        return version

    def _record_failure(self, error: EngineError) -> None:
        if str(error) != self.problem:
            starting = isinstance(error, EngineGone) and not self._has_connected
            log.log(
                logging.DEBUG if starting else logging.WARNING,
                "versions are not loaded yet: %s",
                error,
            )
        self._out_of_sync = True
        self.problem = str(error)
        if isinstance(error, EngineGone):
            self._loaded = frozenset()
            self._metrics.engine_up.set(0)
        self._notify_waiters()

    def _switch_serving(self, loaded: Sequence[int], target: int) -> None:
        is_first = not self._has_connected
        self._loaded = frozenset(loaded)
        self._has_connected = True
        self.problem = self._refusals[self.head][0] if self.head in self._refusals else None
        if target in self._loaded and self.serving != target:
            log.info("version %d answers now; was %d", target, self.serving)
            self._idle[self.serving] = None
            self._serving = target
        if is_first:
            log.info("ready: version %d answers", self.serving)
        for version in [v for v in self._idle if v not in self._loaded]:
            del self._idle[version]
        self._metrics.engine_up.set(1)
        self._metrics.version.set(self.serving)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Wake the waiting requests."""
        self._changed_event.set()
        self._changed_event = asyncio.Event()
