"""Base class of the engines behind HTTP: a `base.EngineLink` over an inference server of another project.

A subclass implements the calls to one kind of server: `_fetch_info`, `_stream_chunks`, `_score_response`,
`_load_adapter`, `_unload_adapter`, and where the server can, `_load_full_weights` and `_score_given_ids`. The base
class connects and reconnects, tracks and drains the loaded versions, checks digests, and orders changes of weights.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.base import Info, OnConnect, until_ready
from openclaw_rl.engines.remote import logprob_convention
from openclaw_rl.engines.remote.http_client import Http
from openclaw_rl.engines.remote.loaded_versions import Held, Holds, adapter_name
from openclaw_rl.engines.remote.weight_queue import Turnstile, read_ahead
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

log = logging.getLogger(__name__)

_BACK_OFF = (0.05, 1.0)  # seconds between attempts to connect: first, longest
_GREETING = 120.0  # seconds; the server may compile during its first replies
_FAREWELL = 5.0  # seconds
_SIGN = 1.0  # seconds between health checks
_NOT_THERE = ("does not exist", "not loaded", "not found")  # what servers answer for an unknown adapter
BASE = ""
"""Name of the full weights of the base model."""


class RemoteEngine(abc.ABC):
    """`EngineLink` to one server. `on_connect(epoch)` is called for each new connection.

    `owner` is part of the adapter names on the server (`loaded_versions.owner_of`).
    """

    kind: ClassVar[str]  # display name, used in messages
    convention_advice: ClassVar[str] = ""  # how to make the server use the expected convention

    def __init__(
        self, http: Http, config: EngineConfig, *, owner: str = "", on_connect: OnConnect | None = None
    ) -> None:
        self.http, self.config, self.owner = http, config, owner
        self.epoch = 0
        self._on_connect = on_connect
        self._info: Info | None = None  # of the present connection; None while disconnected
        self._holds = Holds(config.versions)
        self._turns = Turnstile(BASE, self._reweighed)
        self._full: dict[str, PolicyRef] = {}  # full-weight versions by their names on the server
        self._connecting, self._loading = asyncio.Lock(), asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._closed = False

    # ------------------------------------------------------------------------------ implemented per kind of server

    @abc.abstractmethod
    async def _hello(self) -> Info:
        """Return the server's `Info`. Raises `EngineGone`, or `EngineError` if it cannot be the policy's engine."""

    @abc.abstractmethod
    def _chunks(self, generation: Generation, held: Held, limit: int) -> AsyncGenerator[Chunk]:
        """Stream one reply of at most `limit` tokens. The caller has checked the request. Raises `EngineError`."""

    @abc.abstractmethod
    async def _score(self, held: Held, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """Return [R] log softmax(logits / temperature) of the response ids."""

    @abc.abstractmethod
    async def _add(self, name: str, ref: PolicyRef) -> None:
        """Load an adapter. If the name is already loaded, it is the same adapter. Raises `EngineError`."""

    @abc.abstractmethod
    async def _remove(self, name: str) -> None:
        """Unload an adapter that no reply uses."""

    async def _prepared(self, held: Held, beside: Sequence[Held]) -> Held:
        """Return how a version is served beside the versions `beside`. By default unchanged."""
        return held

    async def _reweigh(self, name: str, ref: PolicyRef | None) -> None:
        """Load full weights (None: those of the base) while none of our replies runs. Raises `EngineError`."""
        raise EngineError(f"{self.kind}: full-weight versions cannot be loaded here; train LoRA adapters")

    async def _weights_now(self) -> str | None:
        """Return the name of the full weights in the server; None if it is unknown."""
        return BASE

    async def _score_ids(self, held: Held, prompt_ids: Ids, response_ids: Ids, ids: Ids) -> Logprobs:
        raise EngineError(f"{self.kind}: this version cannot score given ids position by position")

    # ---------------------------------------------------------------------------------------------------- the link

    @property
    def connected(self) -> bool:
        return self._info is not None

    async def info(self) -> Info:
        """See `EngineLink.info`."""
        info = await self._connect()
        await self._alive()
        holds = self._holds
        waiting = self._turns.waiting
        return replace(info, versions=holds.versions, running=holds.running - waiting, waiting=waiting)

    async def wait_ready(self, timeout: float) -> Info:  # noqa: ASYNC109 (a deadline over several attempts)
        """See `EngineLink.wait_ready`."""
        return await until_ready(self.info, timeout, _BACK_OFF)

    async def _connect(self) -> Info:
        """Return the `Info` of the connection; connect first if necessary. Raises `EngineGone`, `EngineError`."""
        if (known := self._info) is not None:
            return known
        async with self._connecting:
            if (known := self._living()) is not None:
                return known
            if self._closed:
                raise EngineGone("this engine client was closed")
            info, weights = await self._greeted()
            self._holds = Holds(self.config.versions)
            self._full.clear()
            self._turns = Turnstile(weights, self._reweighed)
            self._info = info
            self.epoch += 1
            self._spawn(self._watch())
            if self._on_connect is not None:
                self._on_connect(self.epoch)
            return info

    async def _greeted(self) -> tuple[Info, str | None]:
        """Check the server; return its `Info` and the name of its full weights. Raises `EngineGone` on a timeout."""
        try:
            async with asyncio.timeout(_GREETING):
                info = await self._hello()
                await self._check_convention()
                return info, await self._weights_now()
        except TimeoutError:
            raise EngineGone(f"the engine at {self.http.where} did not answer within {_GREETING:g} s") from None

    def _living(self) -> Info | None:
        return self._info

    async def _check_convention(self) -> None:
        """Raise `EngineError` if the log-probabilities have another convention than `engine.logprobs`."""
        base = Held(ref=PolicyRef(version=0, path=None, digest=""))
        observed = await logprob_convention.observe(lambda asked: self._chunks(asked, base, 1))
        expected, where = self.config.convention, self.http.where
        logprob_convention.check(observed, expected, where=where, advice=self.convention_advice)

    async def _watch(self) -> None:
        """Check the health until a check fails; then abort the running streams and reconnect."""
        while not self._closed:
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), _SIGN)
            try:
                await self.http.alive()
            except EngineGone as error:
                self._lost(error)
                break
        await self._again()

    async def _alive(self) -> None:
        """Raise `EngineGone` if the server does not answer, and let the monitor reconnect."""
        try:
            await self.http.alive()
        except EngineGone:
            self._look.set()
            raise

    def _lost(self, error: EngineGone) -> None:
        self._info = None
        self.http.break_off()
        self._turns.close(error)

    async def _again(self) -> None:
        pause, longest = _BACK_OFF
        while not self._closed and self._info is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            with contextlib.suppress(EngineError):  # the next call raises it again
                await self._connect()

    async def close(self) -> None:
        """See `EngineLink.close`."""
        leave = self.connected
        self._closed, self._info = True, None
        self._turns.close(EngineGone("the connection to the engine was closed"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if leave:
            with contextlib.suppress(TimeoutError):  # free the memory of our adapters on the server
                async with asyncio.timeout(_FAREWELL):
                    await self._forget(self._holds, sorted(self._holds.adapters))
        await self.http.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------------ calls

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        info = await self._connect()
        holds, held = self._holds, self._holds.look_up(generation.version)
        limit = _room(len(generation.prompt_ids), generation.sampling.max_tokens, info.context_length)
        chunks = self._in_turn(generation, held, limit)
        if self._full:  # a slow reader must not delay those who wait for other weights
            chunks = read_ahead(chunks)
        holds.begin(held)
        try:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
                    if chunk.finish is not None:
                        return
            raise EngineGone(f"the engine at {self.http.where} ended the reply without a finish reason")
        except EngineGone:
            self._look.set()  # check at once whether the engine died or only this stream
            raise
        finally:
            holds.end(held)
            self._tidy_soon()

    async def _in_turn(self, generation: Generation, held: Held, limit: int) -> AsyncGenerator[Chunk]:
        turns = self._turns
        await turns.enter(held.weights or BASE)
        try:
            begun = False
            try:
                async with contextlib.aclosing(self._chunks(generation, held, limit)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except EngineError as error:
                if begun or not await self._restored(held, error):
                    raise
            async with contextlib.aclosing(self._chunks(generation, held, limit)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            turns.leave()

    async def _restored(self, held: Held, error: EngineError) -> bool:
        """If the server refused because another client unloaded our adapter, load it again and return True."""
        name = held.adapter
        if name is None or name not in str(error) or not any(words in str(error) for words in _NOT_THERE):
            return False
        log.warning("%s: another client unloaded the adapter %s; loading it again", self.kind, name)
        async with self._loading:
            await self._add(name, held.files)
            self._holds.adapters.add(name)
        return True

    async def _there(self, held: Held, ask: Callable[[], Awaitable[Logprobs]]) -> Logprobs:
        try:
            return np.asarray(await ask(), dtype=np.float32)
        except EngineError as error:
            if not await self._restored(held, error):
                raise
        return np.asarray(await ask(), dtype=np.float32)

    async def score(self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """See `protocols.Engine.score`."""
        async with self._scoring(version, prompt_ids, response_ids) as held:
            wanted = temperature if temperature > 0 else 1.0
            return await self._there(held, lambda: self._score(held, prompt_ids, response_ids, wanted))

    async def score_ids(self, *, version: int, prompt_ids: Ids, response_ids: Ids, ids: Ids) -> Logprobs:
        """Return [R, K] log softmax(logits) of `ids` [R, K] at each position of the response.

        Raises `EngineError` if the server does not support it.
        """
        if ids.ndim != 2 or len(ids) != len(response_ids):
            raise EngineError(f"ids to score have shape {list(ids.shape)}, expected [{len(response_ids)}, K]")
        async with self._scoring(version, prompt_ids, response_ids) as held:
            return await self._there(held, lambda: self._score_ids(held, prompt_ids, response_ids, ids))

    @contextlib.asynccontextmanager
    async def _scoring(self, version: int, prompt_ids: Ids, response_ids: Ids) -> AsyncGenerator[Held]:
        info = await self._connect()
        holds, held = self._holds, self._holds.look_up(version)
        total = len(prompt_ids) + len(response_ids)
        if total > info.context_length:
            raise EngineError(f"prompt and response have {total} tokens; the context holds {info.context_length}")
        for ids, what in ((prompt_ids, "prompt"), (response_ids, "response")):
            if len(ids) == 0:
                raise EngineError(f"the {what} is empty; expected at least one token id")
        turns = self._turns
        holds.begin(held)
        try:
            await turns.enter(held.weights or BASE)
            try:
                yield held
            finally:
                turns.leave()
        finally:
            holds.end(held)
            self._tidy_soon()

    # --------------------------------------------------------------------------------------------------- versions

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        await self._connect()
        async with self._loading:
            holds = self._holds
            holds.check_room(policies)
            await self._alive()
            known = [holds.known(ref) or await _checked(ref, self.owner) for ref in policies]
            made = [await self._prepared(held, known) for held in known]
            fresh: list[str] = []
            try:
                for held in made:
                    if held.adapter is not None and held.adapter not in holds.adapters:
                        await self._add(held.adapter, held.files)
                        holds.adapters.add(held.adapter)
                        fresh.append(held.adapter)
                holds.check_room(policies)  # again: replies may have begun during the loading
            except EngineError:
                await self._forget(holds, fresh)
                raise
            if holds is not self._holds:
                raise EngineGone(f"the engine at {self.http.where} was restarted while versions were loaded")
            self._full |= {h.weights: h.ref for h in made if h.weights is not None}
            holds.change({h.ref.version: h for h in made})
        self._tidy_soon()

    async def _reweighed(self, name: str) -> None:
        await self._reweigh(name, self._full.get(name))

    def _tidy_soon(self) -> None:
        if self._holds.unneeded and not self._closed and self.connected:
            self._spawn(self._tidy())

    async def _tidy(self) -> None:
        async with self._loading:
            await self._forget(self._holds, list(self._holds.unneeded))

    async def _forget(self, holds: Holds, names: Sequence[str]) -> None:
        for name in names:
            holds.adapters.discard(name)
            try:
                await self._remove(name)
            except EngineError as error:  # it costs memory there, but nothing uses it any more
                log.warning("%s: the adapter %s was not unloaded: %s", self.kind, name, error)


def _room(prompt: int, wanted: int, context: int) -> int:
    """Return the largest number of reply tokens. Raises `EngineError` if the prompt fills the context."""
    if prompt == 0:
        raise EngineError("the prompt is empty; expected at least one token id")
    if prompt >= context:
        raise EngineError(f"the prompt has {prompt} tokens; the context holds {context}, including the reply")
    return min(wanted if wanted > 0 else context, context - prompt)


async def _checked(ref: PolicyRef, owner: str) -> Held:
    """Compare the version's files with their digest and return the version. Raises `EngineError`."""
    if ref.path is None:
        return Held(ref=ref)
    if adapter_file.holds_full_weights(Path(ref.path)):
        await asyncio.to_thread(adapter_file.check_full, ref)
        return Held(ref=ref, weights=adapter_name(ref))
    await asyncio.to_thread(adapter_file.read, ref)
    return Held(ref=ref, adapter=adapter_name(ref, owner))
