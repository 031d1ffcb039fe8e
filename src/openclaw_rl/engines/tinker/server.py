"""The engine process for Tinker: the gateway's calls on the engine socket, answered by the service.

It speaks the protocol of the embedded engine, so the gateway imports no SDK. The service does not stream: a reply
arrives whole, in one frame.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import uvloop

from openclaw_rl.engines.base import check_scored_lengths, max_reply_tokens
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion, VersionTable
from openclaw_rl.engines.socket_server import EngineConnection, bind_socket, serve_until_stopped
from openclaw_rl.engines.tinker.call_checks import (
    check_reply,
    check_sampling,
    first_sequence,
    response_logprobs,
)
from openclaw_rl.engines.tinker.launch import known_context_length
from openclaw_rl.engines.tinker.samplers import VersionSamplers
from openclaw_rl.errors import EngineError, ModelLost
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.settings.load import Config
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.tinker.version_file import read_version
from openclaw_rl.types import PolicyRef

log = logging.getLogger(__name__)
T = TypeVar("T")


class TinkerConnection(EngineConnection):
    """One client connection, and the tasks of its calls."""

    def __init__(self, server: TinkerServer) -> None:
        super().__init__(lambda call: server.handle_call(self, call))
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def cancel_calls(self) -> None:
        for task in self.tasks.values():
            task.cancel()


class TinkerServer:
    """Answers calls: each one is a task, which waits for the service. Holds a sampling client for each version."""

    def __init__(self, service: TinkerService, config: Config) -> None:
        self._service = service
        self._config = config
        self._table = VersionTable(config.engine.max_loaded_versions)
        self._samplers = VersionSamplers(service, config.tinker.sample_from)
        self._load_lock = asyncio.Lock()

    def handle_call(self, peer: TinkerConnection, call: protocol.EngineCall) -> None:
        """Start one call, or cancel one."""
        if isinstance(call, protocol.CancelCall):
            cancelled = peer.tasks.get(call.id)
            if cancelled is not None:
                cancelled.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._answer_call(peer, call))
        peer.tasks[call.id] = task
        task.add_done_callback(lambda _: peer.tasks.pop(call.id, None))

    async def _answer_call(self, peer: TinkerConnection, call: protocol.EngineCall) -> None:
        try:
            peer.send(await self._make_answer(call))
        except EngineError as error:
            peer.send(protocol.RejectionReply.of(call.id, error))
        except Exception as error:
            # The gateway must learn of any failure, else its request waits.
            log.exception("a call failed")
            peer.send(
                protocol.RejectionReply(
                    call.id, f"the Tinker engine failed: {type(error).__name__}: {error}"
                )
            )

    async def _make_answer(self, call: protocol.EngineCall) -> protocol.EngineReply:
        if isinstance(call, protocol.GenerateCall):
            return await self._generate_reply(call)
        if isinstance(call, protocol.ScoreCall):
            return await self._score_reply(call)
        if isinstance(call, protocol.LoadCall):
            await self._load_versions(call.policies)
            return protocol.LoadReply(call.id)
        await self._connect_service()
        return protocol.InfoReply(call.id, self._make_info())

    async def _connect_service(self) -> None:
        await asyncio.to_thread(self._service.open_session)

    @property
    def _context_length(self) -> int:
        return known_context_length(self._config, self._service.context_length)

    def _make_info(self) -> EngineInfo:
        return EngineInfo(
            model=self._service.model,
            context_length=self._context_length,
            device="tinker",
            dtype="",
            versions=self._table.versions,
            running=self._table.running_replies,
            pid=os.getpid(),
        )

    async def _generate_reply(self, call: protocol.GenerateCall) -> protocol.TokensReply:
        loaded = self._table.look_up(call.version)
        ids = protocol.unpack_ids(call.prompt_ids)
        check_sampling(call.sampling, call.top_logprobs)
        await self._connect_service()
        limit = max_reply_tokens(len(ids), call.sampling.max_tokens, self._context_length)
        self._table.begin_use(loaded)
        try:
            answer = await self._ask_sampler(
                loaded,
                lambda sampler: self._service.start_sampling(
                    sampler,
                    ids.tolist(),
                    max_tokens=limit,
                    stop=call.stop_token_ids,
                    seed=_service_seed(call.sampling.seed),
                    temperature=call.sampling.temperature,
                    top_p=call.sampling.top_p,
                    top_k=call.sampling.top_k or -1,
                ),
            )
        finally:
            self._table.end_use(loaded)
            self._discard_unused()
        reply = first_sequence(answer)
        finish = check_reply(reply.tokens, reply.logprobs, reply.stop_reason, call.stop_token_ids)
        count = len(reply.tokens)
        return protocol.TokensReply(
            [call.id] * count, list(reply.tokens), list(reply.logprobs), {call.id: finish}
        )

    async def _score_reply(self, call: protocol.ScoreCall) -> protocol.ScoreReply:
        loaded = self._table.look_up(call.version)
        prompt = protocol.unpack_ids(call.prompt_ids)
        response = protocol.unpack_ids(call.response_ids)
        if call.temperature not in (0.0, 1.0):
            raise EngineError(f"Tinker scores at temperature 1, not {call.temperature:g}")
        await self._connect_service()
        check_scored_lengths(len(prompt), len(response), self._context_length)
        self._table.begin_use(loaded)
        try:
            whole = np.concatenate([prompt, response]).tolist()
            scores = await self._ask_sampler(
                loaded, lambda sampler: self._service.start_scoring(sampler, whole)
            )
        finally:
            self._table.end_use(loaded)
            self._discard_unused()
        logprobs = response_logprobs(scores, len(prompt), len(response))
        return protocol.ScoreReply(call.id, protocol.pack_logprobs(logprobs))

    async def _ask_sampler(self, loaded: LoadedVersion, start: Callable[[Any], Future[T]]) -> T:
        """Call the version's sampling client; once more if the service lost its model, or the session.

        Raises `EngineError`.
        """
        sampler: Any = None
        try:
            sampler = await self._samplers.find_or_create(loaded.adapter)
            return await self._wait_result(start(sampler))
        except ModelLost:
            self._samplers.forget_all(sampler)
        return await self._wait_result(start(await self._samplers.find_or_create(loaded.adapter)))

    async def _wait_result(self, started: Future[T]) -> T:
        """Wait for the service, `tinker.call_timeout` seconds at most. Raises `EngineError`."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(started), self._service.timeout)
        except TimeoutError:
            raise self._service.timeout_error() from None
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries
            raise self._service.to_engine_error(error) from None

    async def _load_versions(self, policies: Sequence[PolicyRef]) -> None:
        """Hold these versions. Raises `EngineError` with nothing changed."""
        async with self._load_lock:
            self._table.check_capacity(policies)
            loaded = []
            for ref in policies:
                version = self._table.find_loaded(ref) or await self._read_held(ref)
                loaded.append(version)
            for version in loaded:
                await self._samplers.find_or_create(version.adapter)
            # Again: replies may have begun meanwhile.
            self._table.check_capacity(policies)
            self._table.loaded = {version.ref.version: version for version in loaded}
        self._discard_unused()

    async def _read_held(self, ref: PolicyRef) -> LoadedVersion:
        if ref.path is None:
            return LoadedVersion(ref=ref)
        version = await asyncio.to_thread(read_version, ref)
        if version.base != self._service.model:
            raise EngineError(
                f"version {ref.version} was trained on {version.base}, and tinker.model is {self._service.model}. "
                "Set it back, or use another home"
            )
        return LoadedVersion(ref=ref, adapter=self._samplers.add_version(version))

    def _discard_unused(self) -> None:
        self._table.adapters = self._samplers.paths
        for path in self._table.unused_adapters:
            self._samplers.discard(path)


def _service_seed(seed: int | None) -> int | None:
    """Return a seed in the service's range."""
    return None if seed is None else seed % 2**31


async def _run_server(config: Config) -> None:
    parent = os.getppid()
    bound = bind_socket(config.engine_socket)
    server = TinkerServer(TinkerService(config), config)
    try:
        await serve_until_stopped(lambda: TinkerConnection(server), bound, parent)
    finally:
        bound.close()
        config.engine_socket.unlink(missing_ok=True)


def main(config: Config) -> None:
    """Serve Tinker at `config.engine_socket` until SIGTERM, or until the parent dies.

    Raises `EngineError` if the socket is in use.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_server(config))
