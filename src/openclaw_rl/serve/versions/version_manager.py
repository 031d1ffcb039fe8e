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
from openclaw_rl.types import Policy, PolicyRef, PolicyState

log = logging.getLogger(__name__)

# Seconds between reads of the head.
POLL_SECONDS = 0.1
# Seconds until a failed load is retried.
_LOAD_RETRY_SECONDS = 0.25
# Seconds until a version that the engine refused is retried.
_REFUSED_RETRY_SECONDS = 5.0
_UNKNOWN = "does not exist"
_SERVABLE_STATES = frozenset({PolicyState.LIVE, PolicyState.ROLLED_BACK})


def unservable_reason(policy: Policy | None, *, for_gate: bool = False) -> str | None:
    """Return why a version cannot be served, or None. `policy`: None if unknown. `for_gate`: a candidate can."""
    if policy is None:
        return _UNKNOWN
    if policy.state is PolicyState.CANDIDATE:
        return None if for_gate else "is a candidate that the gate has not decided on"
    if policy.state not in _SERVABLE_STATES:
        return "was rejected"
    return "was removed to save space" if policies.is_removed(policy) else None


def unknown_version(version: int, newest: int, reason: str = _UNKNOWN) -> RequestError:
    """Return the error for a version that cannot be had."""
    return RequestError(
        f"version {version} {reason}; the newest is {newest}.",
        param="model",
        code="version_not_found",
        status=404,
    )


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
        if canary is not None and canary.version in self._loaded:
            version = canary.version if is_chosen(canary, conversation()) else version
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
        chosen = head
        if head not in self._loaded:
            self._wake_event.set()
            serving = self._recent.get(policy, head)
            chosen = serving if serving in self._loaded else head
        self._recent[policy] = chosen
        self._recent.move_to_end(policy)
        while len(self._recent) > self._max_loaded:
            self._recent.popitem(last=False)
        return chosen

    def acquire_again(self, version: int) -> None:
        """Acquire an already acquired version once more, for another reply to the same request."""
        self._in_use[version] += 1

    async def acquire_version(self, version: int, *, for_gate: bool = False) -> int:
        """Acquire the version that the client named. Raises `RequestError` (404) if it cannot be served.

        `for_gate`: the client is the gate, for which candidates are loaded, too.
        """
        if version not in self._loaded or version in self._stored.candidates:
            await self._admit_version(version, for_gate=for_gate)
        self._in_use[version] += 1
        if version not in self._loaded:
            self._wake_event.set()
        return version

    async def _admit_version(self, version: int, *, for_gate: bool) -> None:
        """Look a version up in the store. Raises `RequestError` (404) if it cannot be served."""
        policy = await asyncio.to_thread(self._stored.read_policy, version)
        reason = unservable_reason(policy, for_gate=for_gate)
        if policy is None or reason is not None:
            raise unknown_version(version, self.head, reason or _UNKNOWN)
        self._stored.add(policy)

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
                    self._move_request(version, ancestor)
                    version = ancestor
                    continue
            with self._places.wait_for(version, asyncio.get_running_loop().time()):
                await self._wait_change(version, deadline)
        return version

    def _move_request(self, version: int, ancestor: int) -> None:
        """Release `version` and acquire `ancestor` in its place."""
        self.release(version)
        self._in_use[ancestor] += 1
        self._wake_event.set()

    async def _wait_change(self, version: int, deadline: float) -> None:
        """Wait until `version` takes requests or was refused."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._changed_event.wait()
                    if self.is_loaded(version) or version in self._refusals:
                        return
        except TimeoutError:
            problem = self.problem or f"version {version} is not loaded yet"
            raise ReplyFailed(
                f"the engine does not answer ({problem}). "
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
            pause = await self._update()
            try:
                # `wait_for` loses a cancellation that comes with the event.
                async with asyncio.timeout(pause):
                    await self._wake_event.wait()
            except TimeoutError:
                continue

    async def _update(self) -> float:
        """Read the head and load what is planned. Returns the seconds until the next update."""
        try:
            if await asyncio.to_thread(self._stored.refresh, self._in_use):
                log.debug("the head is version %d", self.head)
            if self._serving is None:
                self._serving = self.head
            is_complete = await self._load_planned()
            if self.serving != self._stored.recorded:
                await asyncio.to_thread(self._stored.record_serving, self.serving)
        except StoreError as error:
            # Loaded versions continue to answer.
            log.error("the head cannot be read: %s", error)
            self.problem = str(error)
            return _LOAD_RETRY_SECONDS
        return POLL_SECONDS if is_complete else _LOAD_RETRY_SECONDS

    async def _load_planned(self) -> bool:
        """Load the planned versions. Returns False if the engine refused one or is gone."""
        now = asyncio.get_running_loop().time()
        self._refusals = {v: refusal for v, refusal in self._refusals.items() if refusal[1] >= now}
        target = await self._loadable_version(self.head)
        planned = self._plan(target, await self._other_versions(), now)
        if frozenset(planned) == self._loaded and not self._out_of_sync:
            if self.serving != target and target in self._loaded:
                self._switch_serving(planned, target)
            return True
        # Versions to be unloaded take no new requests.
        self._loaded &= frozenset(planned)
        self._out_of_sync = False
        try:
            loaded = await self._load_versions(planned)
            if self.on_loaded is not None:
                await self.on_loaded()
        except EngineError as error:
            self._record_failure(error)
            return False
        self._switch_serving(loaded, target)
        return loaded == planned

    async def _other_versions(self) -> list[tuple[int, int]]:
        """Return (serving version, head) of the canaries, and of the policies of one's own, last used first."""
        others = []
        for canary in self._stored.canaries.values():
            if canary.version not in self._refusals:
                others.append((canary.version, canary.version))
        for name, serving in reversed(list(self._recent.items())):
            head = await self._loadable_version(self._stored.head_of(name))
            others.append((serving, head))
        return others

    def _plan(self, target: int, others: Sequence[tuple[int, int]], now: float) -> list[int]:
        """Return the versions that the engine should load, and choose those that must leave."""
        in_use = Counter({v: n for v, n in self._in_use.items() if v not in self._refusals})
        takes_requests_again = self._places.choose_leaving(
            in_use,
            loaded=self._loaded,
            keep={self.serving, target},
            cap=self._max_loaded,
            now=now,
        )
        if takes_requests_again:
            self._notify_waiters()
        return plan_versions(
            loaded=self._loaded,
            serving=self.serving,
            head=target,
            in_use=self._places.in_order(in_use),
            drained=self._places.drained(in_use),
            idle=[v for v in self._idle if self._stored.knows(v) and v not in self._refusals],
            cap=self._max_loaded,
            others=others,
        )

    async def _load_versions(self, planned: list[int]) -> list[int]:
        """Load `planned` and return the loaded versions. If the engine refuses them together, load them one by one.

        Versions whose files do not match their digests are left out.
        """
        sound = await self._without_damaged(planned)
        for version in sound:
            await self._stored.find(version)
        try:
            await self._engine.load(self._refs(sound))
            self._sound.clear()
            return sound
        except EngineGone:
            raise
        except EngineError as error:
            if len(sound) == 1:
                await self._refuse(sound[0], error)
                raise
        return await self._load_one_by_one(sound)

    async def _without_damaged(self, planned: Sequence[int]) -> list[int]:
        """Return the versions whose files match their digests. Raises `EngineError` if no version has such files."""
        damage_by_version: dict[int, str] = {}
        for version in planned:
            damage = await self._find_damage(version)
            if damage is not None:
                self._record_refusal(version, EngineError(damage))
                damage_by_version[version] = damage
        sound = [version for version in planned if version not in damage_by_version]
        if damage_by_version and not sound:
            version, damage = damage_by_version.popitem()
            raise EngineError(f"version {version}: {damage}")
        return sound

    async def _find_damage(self, version: int) -> str | None:
        """Examine the files of a version that is about to be loaded."""
        if version in self._loaded or version in self._sound:
            return None
        damage = await asyncio.to_thread(self._stored.examine_files, version)
        if damage is None:
            self._sound.add(version)
        return damage

    async def _load_one_by_one(self, versions: Sequence[int]) -> list[int]:
        """Load each version beside the loaded ones, and return those that the engine accepts."""
        accepted = [version for version in versions if version in self._loaded]
        new = [version for version in versions if version not in self._loaded]
        for version in new:
            try:
                await self._engine.load(self._refs([*accepted, version]))
                accepted.append(version)
            except EngineGone:
                raise
            except EngineError as error:
                await self._refuse(version, error)
        return sorted(accepted)

    def _refs(self, versions: Sequence[int]) -> list[PolicyRef]:
        return [self._stored.known(version).ref for version in versions]

    async def _refuse(self, version: int, error: EngineError) -> None:
        """Record a refusal. At the first one all files of the version are read, so that damage is recorded."""
        if version not in self._refusals and not isinstance(error, EngineFull):
            await asyncio.to_thread(self._stored.examine_files, version, trusts_known=False)
        self._record_refusal(version, error)

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
        while version in self._refusals:
            parent = (await self._stored.find(version)).parent
            if parent is None:
                break
            version = parent
        return version

    def _record_failure(self, error: EngineError) -> None:
        is_gone = isinstance(error, EngineGone)
        if str(error) != self.problem:
            is_starting = is_gone and not self._has_connected
            level = logging.DEBUG if is_starting else logging.WARNING
            log.log(level, "versions are not loaded yet: %s", error)
        self._out_of_sync = True
        self.problem = str(error)
        if is_gone:
            self._loaded = frozenset()
            self._metrics.engine_up.set(0)
        self._notify_waiters()

    def _switch_serving(self, loaded: Sequence[int], target: int) -> None:
        is_first = not self._has_connected
        self._loaded = frozenset(loaded)
        self._has_connected = True
        self.problem, _ = self._refusals.get(self.head, (None, 0.0))
        if target in self._loaded and self.serving != target:
            log.info("version %d answers now; was %d", target, self.serving)
            self._idle[self.serving] = None
            self._serving = target
        if is_first:
            log.info("ready: version %d answers", self.serving)
        unloaded = self._idle.keys() - self._loaded
        for version in unloaded:
            del self._idle[version]
        self._metrics.engine_up.set(1)
        self._metrics.version.set(self.serving)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Wake the waiting requests."""
        self._changed_event.set()
        self._changed_event = asyncio.Event()
