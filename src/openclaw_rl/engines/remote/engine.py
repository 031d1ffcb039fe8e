"""Base class of the engines behind HTTP: a `base.EngineLink` over an inference server of another project.

A subclass implements the calls to one kind of server: `_fetch_info`, `_stream_chunks`, `_score_prompt`,
`_load_full_weights` and the others below `implemented per kind of server`. The base class connects and reconnects,
tracks and drains the loaded versions, checks digests, and orders changes of weights.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from openclaw_rl.common.worker_loop import wait_or_stop
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.base import (
    BASE_POLICY,
    check_scored_lengths,
    max_reply_tokens,
    wait_until_ready,
)
from openclaw_rl.engines.remote import logprob_convention
from openclaw_rl.engines.remote.http_client import HttpClient, RequestRefused
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion, VersionTable, verify_version
from openclaw_rl.engines.remote.token_watch import TokenWatch
from openclaw_rl.engines.remote.weight_queue import WeightLock, read_ahead
from openclaw_rl.errors import EngineError, EngineGone, GrammarError
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

log = logging.getLogger(__name__)

# Seconds between attempts to connect: first, longest.
_BACK_OFF = (0.05, 1.0)
# Seconds; the server may compile during its first replies.
_HANDSHAKE_TIMEOUT = 120.0
# Seconds.
_UNLOAD_TIMEOUT = 5.0
# Concurrent requests of one scoring.
_CONCURRENT_SCORINGS = 8
_ALREADY_LOADED = re.compile(r"already (been )?loaded")
# What servers answer for an unknown adapter.
_NOT_LOADED_MESSAGES = ("does not exist", "not loaded", "not found")
BASE_WEIGHTS = ""
"""Name of the full weights of the base model."""


class RemoteEngine(abc.ABC):
    """`EngineLink` to one server. `on_connect(epoch)` is called for each new connection.

    `owner` is part of the adapter names on the server (`loaded_versions.owner_of`).
    """

    kind: ClassVar[str]  # display name, used in messages
    convention_advice: ClassVar[str] = ""  # how to make the server use the expected convention
    lora_advice: ClassVar[str]  # how to make the server load adapters
    health_interval: ClassVar[float] = 1.0  # seconds between health checks
    # Prefix of the paths `/load_lora_adapter` and `/unload_lora_adapter`.
    adapter_routes: ClassVar[str] = ""
    _base_path = ""  # of the base weights, as the server names them

    def __init__(
        self,
        http: HttpClient,
        config: EngineConfig,
        *,
        owner: str = "",
        on_connect: OnConnect | None = None,
    ) -> None:
        self.http = http
        self.config = config
        self.owner = owner
        self.epoch = 0
        self._on_connect = on_connect
        # Of the present connection; None while disconnected.
        self._info: EngineInfo | None = None
        self._version_table = VersionTable(config.max_loaded_versions)
        self._weight_lock = WeightLock(BASE_WEIGHTS, self._swap_full_weights)
        # full-weight versions by their names on the server.
        self._full_weights: dict[str, PolicyRef] = {}
        self._connect_lock = asyncio.Lock()
        self._load_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._check_now = asyncio.Event()
        self._token_watch = TokenWatch()
        self.max_silence = 120.0
        """Seconds without a token in any running reply after which the server counts as hung."""
        self._closed = False

    # ------------------------------------------------------------------------------ implemented per kind of server

    @abc.abstractmethod
    async def _fetch_info(self) -> EngineInfo:
        """Return the server's `Info`. Raises `EngineGone`, or `EngineError` if it cannot be the policy's engine."""

    @abc.abstractmethod
    def _stream_chunks(
        self, generation: Generation, loaded: LoadedVersion, limit: int
    ) -> AsyncGenerator[Chunk]:
        """Stream one reply of at most `limit` tokens. The caller has checked the request. Raises `EngineError`."""

    @abc.abstractmethod
    async def _score_prompt(
        self, loaded: LoadedVersion, prompt_ids: Ids, response_ids: Ids
    ) -> Logprobs:
        """Return [R] log softmax(logits) of the response ids by one request."""

    @abc.abstractmethod
    async def _score_next_token(
        self, loaded: LoadedVersion, prompt: Ids, token: int, temperature: float
    ) -> float:
        """Return log softmax(logits / temperature) of `token` as the token after `prompt`."""

    @abc.abstractmethod
    def _prepare_adapter(self, name: str, file: AdapterFile) -> None:
        """Prepare to load an adapter. Raises `EngineError` if the server has no slot or would serve other weights."""

    async def _prepare_version(
        self, loaded: LoadedVersion, beside: Sequence[LoadedVersion]
    ) -> LoadedVersion:
        """Return what is loaded to serve `loaded` beside `beside`: by default `loaded` itself."""
        return loaded

    @abc.abstractmethod
    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        """Load full weights (None: those of the base) while none of our replies runs. Raises `EngineError`."""

    @abc.abstractmethod
    async def _loaded_weights_name(self) -> str:
        """Return the name of the full weights in the server."""

    # ---------------------------------------------------------------------------------------------------- the link

    @property
    def connected(self) -> bool:
        return self._info is not None

    async def info(self) -> EngineInfo:
        """See `EngineLink.info`."""
        info = await self._ensure_connected()
        await self._check_alive()
        table = self._version_table
        waiting = self._weight_lock.waiting_count
        return replace(
            info, versions=table.versions, running=table.running_replies - waiting, waiting=waiting
        )

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109 (a deadline over several attempts)
        """See `EngineLink.wait_ready`."""
        return await wait_until_ready(self.info, timeout, _BACK_OFF)

    async def _ensure_connected(self) -> EngineInfo:
        """Return what the server reported; connect first if necessary. Raises `EngineGone`, `EngineError`."""
        known = self._info
        if known is not None:
            return known
        async with self._connect_lock:
            # Another caller may have connected meanwhile.
            known = self._info
            if known is not None:
                return known
            if self._closed:
                raise EngineGone("this engine client was closed")
            info, weights = await self._identify_server()
            self._version_table = VersionTable(self.config.max_loaded_versions)
            self._full_weights.clear()
            self._weight_lock = WeightLock(weights, self._swap_full_weights)
            self._info = info
            self.epoch += 1
            self._spawn_task(self._monitor_connection())
            if self._on_connect is not None:
                self._on_connect(self.epoch)
            return info

    async def _identify_server(self) -> tuple[EngineInfo, str]:
        """Check the server; return its `Info` and the name of its full weights. Raises `EngineGone` on a timeout."""
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                info = await self._fetch_info()
                await self._check_convention()
                return info, await self._loaded_weights_name()
        except TimeoutError:
            raise EngineGone(
                f"the engine at {self.http.address} did not answer within {_HANDSHAKE_TIMEOUT:g} s"
            ) from None

    async def _check_convention(self) -> None:
        """Raise `EngineError` if the log-probabilities have another convention than `engine.logprob_convention`."""
        base = LoadedVersion(ref=BASE_POLICY)
        observed = await logprob_convention.observe_convention(
            lambda asked: self._stream_chunks(asked, base, 1)
        )
        expected = self.config.effective_convention
        where = self.http.address
        logprob_convention.check_convention(
            observed, expected, where=where, advice=self.convention_advice
        )

    async def _monitor_connection(self) -> None:
        """Check the health until a check fails; then abort the running streams and reconnect."""
        while not self._closed:
            self._check_now.clear()
            await wait_or_stop(self._check_now, self.health_interval)
            try:
                await self.http.check_alive()
                self._check_not_hung()
            except EngineGone as error:
                self._mark_disconnected(error)
                break
        await self._reconnect_with_backoff()

    def _check_not_hung(self) -> None:
        """Raise `EngineGone` if the server answers, but none of its replies gets a token."""
        seconds = self._token_watch.silence()
        if seconds > self.max_silence:
            raise EngineGone(
                f"the engine at {self.http.address} hangs: no reply has got a token for {seconds:.0f} s "
                "(run.heartbeat_timeout). Restart it"
            )

    async def _check_alive(self) -> None:
        """Raise `EngineGone` if the server does not answer, and let the monitor reconnect."""
        try:
            await self.http.check_alive()
        except EngineGone:
            self._check_now.set()
            raise

    def _mark_disconnected(self, error: EngineGone) -> None:
        self._info = None
        self.http.abort_streams()
        self._weight_lock.close(error)

    async def _reconnect_with_backoff(self) -> None:
        pause, longest = _BACK_OFF
        while not self._closed and self._info is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            # The next call raises it again.
            with contextlib.suppress(EngineError):
                await self._ensure_connected()

    async def close(self) -> None:
        """See `EngineLink.close`."""
        leave = self.connected
        self._closed = True
        self._info = None
        self._weight_lock.close(EngineGone("the connection to the engine was closed"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if leave:
            # Free the memory of our adapters on the server.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNLOAD_TIMEOUT):
                    await self._discard_adapters(
                        self._version_table, sorted(self._version_table.adapters)
                    )
        await self.http.close()

    def _spawn_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------------ calls

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        info = await self._ensure_connected()
        loaded = self._version_table.look_up(generation.version)
        limit = max_reply_tokens(
            len(generation.prompt_ids), generation.sampling.max_tokens, info.context_length
        )
        chunks = self._stream_with_weights(generation, loaded, limit)
        # A slow reader must not delay those who wait for other weights.
        if self._full_weights:
            chunks = read_ahead(chunks)
        with self._in_use(loaded):
            try:
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        yield chunk
                        if chunk.finish is not None:
                            return
                raise EngineGone(
                    f"the engine at {self.http.address} ended the reply without a finish reason"
                )
            except EngineGone:
                # Check at once whether the engine died or only this stream.
                self._check_now.set()
                raise

    @contextlib.contextmanager
    def _in_use(self, loaded: LoadedVersion) -> Iterator[None]:
        """Keep a version in the server for the block."""
        table = self._version_table
        table.begin_use(loaded)
        try:
            yield
        finally:
            table.end_use(loaded)
            self._schedule_unload_unused()

    async def _stream_with_weights(
        self, generation: Generation, loaded: LoadedVersion, limit: int
    ) -> AsyncGenerator[Chunk]:
        begun = False
        async with self._weight_lock.hold_weights(loaded.weights or BASE_WEIGHTS):
            for is_retry in (False, True):
                try:
                    watched = self._token_watch.watch_reply(
                        self._stream_chunks(generation, loaded, limit)
                    )
                    async with contextlib.aclosing(watched) as chunks:
                        async for chunk in chunks:
                            begun = True
                            yield chunk
                    return
                except EngineGone:
                    raise
                except EngineError as error:
                    if generation.sampling.grammar is not None and "grammar" in str(error).lower():
                        raise GrammarError(str(error)) from None
                    if is_retry or begun or not await self._reload_if_missing(loaded, error):
                        raise

    async def _reload_if_missing(self, loaded: LoadedVersion, error: EngineError) -> bool:
        """If the server refused because another client unloaded our adapter, load it again and return True."""
        name = loaded.adapter
        if (
            name is None
            or name not in str(error)
            or not any(message in str(error) for message in _NOT_LOADED_MESSAGES)
        ):
            return False
        log.warning("%s: another client unloaded the adapter %s; loading it again", self.kind, name)
        async with self._load_lock:
            await self._load_adapter(name, loaded.adapter_files)
            self._version_table.adapters.add(name)
        return True

    async def score(
        self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """See `protocols.Engine.score`."""
        info = await self._ensure_connected()
        loaded = self._version_table.look_up(version)
        check_scored_lengths(len(prompt_ids), len(response_ids), info.context_length)
        wanted = temperature if temperature > 0 else 1.0
        with self._in_use(loaded):
            async with self._weight_lock.hold_weights(loaded.weights or BASE_WEIGHTS):
                try:
                    return await self._score_response(loaded, prompt_ids, response_ids, wanted)
                except EngineError as error:
                    if not await self._reload_if_missing(loaded, error):
                        raise
                return await self._score_response(loaded, prompt_ids, response_ids, wanted)

    async def _score_response(
        self, loaded: LoadedVersion, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """Score with one request at temperature 1, else with one per position, which the prefix cache makes cheap."""
        if temperature == 1.0:
            return await self._score_prompt(loaded, prompt_ids, response_ids)
        if self.config.effective_convention == "raw":
            raise EngineError(
                f"the engine returns raw log-probabilities, so it scores at temperature 1, not {temperature:g}. "
                + self.convention_advice
            )
        whole = np.concatenate([prompt_ids, response_ids])
        slots = asyncio.Semaphore(_CONCURRENT_SCORINGS)

        async def score_position(i: int) -> float:
            async with slots:
                return await self._score_next_token(loaded, whole[:i], int(whole[i]), temperature)

        # Alone, so that the others find the prompt in the prefix cache.
        first = await score_position(len(prompt_ids))
        rest = await asyncio.gather(
            *(score_position(i) for i in range(len(prompt_ids) + 1, len(whole)))
        )
        return np.array([first, *rest], dtype=np.float32)

    # --------------------------------------------------------------------------------------------------- versions

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        await self._ensure_connected()
        async with self._load_lock:
            table = self._version_table
            table.check_capacity(policies)
            await self._check_alive()
            known = [
                table.find_loaded(ref) or await verify_version(ref, self.owner) for ref in policies
            ]
            prepared = [await self._prepare_version(version, known) for version in known]
            fresh: list[str] = []
            try:
                for version in prepared:
                    if version.adapter is not None and version.adapter not in table.adapters:
                        await self._load_adapter(version.adapter, version.adapter_files)
                        table.adapters.add(version.adapter)
                        fresh.append(version.adapter)
                # Again: replies may have begun during the loading.
                table.check_capacity(policies)
            except EngineError:
                await self._discard_adapters(table, fresh)
                raise
            if table is not self._version_table:
                raise EngineGone(
                    f"the engine at {self.http.address} was restarted while versions were loaded"
                )
            for version in prepared:
                if version.weights is not None:
                    self._full_weights[version.weights] = version.ref
            table.loaded = {version.ref.version: version for version in prepared}
        self._schedule_unload_unused()

    async def _load_adapter(self, name: str, ref: PolicyRef) -> None:
        """Load an adapter. If the name is already loaded, it is the same adapter. Raises `EngineError`."""
        file = await asyncio.to_thread(adapter_file.read_adapter, ref)
        await asyncio.to_thread(adapter_file.check_fits_base, file, self._base_path)
        self._prepare_adapter(name, file)
        body = {"lora_name": name, "lora_path": adapter_file.absolute_path(ref)}
        try:
            await self.http.post_checked(f"{self.adapter_routes}/load_lora_adapter", body)
        except RequestRefused as error:
            if _ALREADY_LOADED.search(str(error)):
                # Over an earlier connection; the name identifies the content.
                return
            advice = (
                f" {self.lora_advice}" if "not enabled" in str(error) or "404" in str(error) else ""
            )
            raise EngineError(
                f"version {ref.version}: {self.kind} cannot load {ref.path}: {error}{advice}"
            ) from None

    async def _swap_full_weights(self, name: str) -> None:
        await self._load_full_weights(name, self._full_weights.get(name))

    def _schedule_unload_unused(self) -> None:
        if self._version_table.unused_adapters and not self._closed and self.connected:
            self._spawn_task(self._unload_unused())

    async def _unload_unused(self) -> None:
        async with self._load_lock:
            await self._discard_adapters(
                self._version_table, list(self._version_table.unused_adapters)
            )

    async def _discard_adapters(self, table: VersionTable, names: Sequence[str]) -> None:
        for name in names:
            table.adapters.discard(name)
            try:
                await self.http.post_checked(
                    f"{self.adapter_routes}/unload_lora_adapter", {"lora_name": name}
                )
            except EngineError as error:
                # The unused adapter only wastes memory on the server.
                log.warning("%s: the adapter %s was not unloaded: %s", self.kind, name, error)
