"""The engine process: a single thread decodes and serves the socket, so that nothing contends for the GIL.

Between two decode steps the event loop receives calls, sends the sampled tokens, and gives a load a time slice that is
short compared to a step. Adapter files are read and hashed in a helper thread, which rarely needs the GIL.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Coroutine, Generator

import torch
import uvloop

from openclaw_rl.engines.embedded import protocol
from openclaw_rl.engines.embedded.full_models import MultiModelEngine
from openclaw_rl.engines.embedded.grammar import GrammarCompiler, GrammarState
from openclaw_rl.engines.embedded.model import EmbeddedModel, resolve_model_path
from openclaw_rl.engines.embedded.sequence import (
    EngineSequence,
    SequenceFailed,
    SequenceScored,
    StepEvent,
)
from openclaw_rl.engines.socket_server import EngineConnection, bind_socket, serve_until_stopped
from openclaw_rl.errors import EngineError, GrammarError
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.settings.load import Config
from openclaw_rl.types import PolicyRef

log = logging.getLogger(__name__)

# Time slice of a load between two steps: minimum in seconds, or share of a step.
_LOAD_TIME_SLICE = (0.0002, 0.1)


class _EmbeddedConnection(EngineConnection):
    """One client connection, and the sequences of its calls."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(lambda call: server.handle_call(self, call))
        self._server = server
        self.seqs: dict[int, EngineSequence] = {}
        # Calls whose grammar is not ready yet.
        self.compiling: set[int] = set()

    def cancel_calls(self) -> None:
        for seq in self.seqs.values():
            self._server.engine.cancel(seq)
        self.seqs.clear()
        self.compiling.clear()


class EmbeddedServer:
    """Server of one engine: takes calls from the clients, steps the engine and sends the tokens."""

    def __init__(self, engine: MultiModelEngine, grammars: GrammarCompiler | None = None) -> None:
        self.engine = engine
        self._grammars = grammars
        self._work_available = asyncio.Event()
        self._load_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._step_seconds = 0.0

    def handle_call(self, peer: _EmbeddedConnection, call: protocol.EngineCall) -> None:
        """Handle one call; slow work runs in a background task."""
        if isinstance(call, protocol.CancelCall):
            peer.compiling.discard(call.id)
            seq = peer.seqs.pop(call.id, None)
            if seq is not None:
                self.engine.cancel(seq)
        elif isinstance(call, protocol.InfoCall):
            peer.send(self._info_reply(call.id))
        elif isinstance(call, protocol.LoadCall):
            self._start_task(self._handle_load(peer, call))
        elif isinstance(call, protocol.GenerateCall) and call.sampling.grammar is not None:
            peer.compiling.add(call.id)
            self._start_task(self._submit_with_grammar(peer, call, call.sampling.grammar))
        else:
            self._submit_call(peer, call)

    async def _submit_with_grammar(
        self, peer: _EmbeddedConnection, call: protocol.GenerateCall, grammar: str
    ) -> None:
        """Compile the grammar in a thread, then submit the call unless it was cancelled in the meantime."""
        try:
            if self._grammars is None:
                raise GrammarError(
                    "this model has no tokenizer.json, which is needed to enforce a format"
                )
            grammar_state = await asyncio.to_thread(
                self._grammars.initial_state, grammar, call.stop_token_ids
            )
        except GrammarError as error:
            peer.send(protocol.RejectionReply.of(call.id, error))
            return
        if call.id in peer.compiling:
            peer.compiling.remove(call.id)
            self._submit_call(peer, call, grammar_state)

    def _submit_call(
        self,
        peer: _EmbeddedConnection,
        call: protocol.GenerateCall | protocol.ScoreCall,
        grammar_state: GrammarState | None = None,
    ) -> None:
        owner = (peer, call.id)
        ids = protocol.unpack_ids(call.prompt_ids)
        try:
            if isinstance(call, protocol.GenerateCall):
                seq = self.engine.generate(
                    owner,
                    call.version,
                    ids,
                    call.sampling,
                    call.stop_token_ids,
                    call.top_logprobs,
                    grammar_state,
                )
            else:
                response = protocol.unpack_ids(call.response_ids)
                seq = self.engine.score(owner, call.version, ids, response, call.temperature)
        except EngineError as error:
            peer.send(protocol.RejectionReply(call.id, str(error)))
            return
        peer.seqs[call.id] = seq
        self._work_available.set()

    def _info_reply(self, call: int) -> protocol.InfoReply:
        engine = self.engine
        model = self.engine.model
        info = EngineInfo(
            model=model.name,
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            versions=engine.versions,
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            running=engine.running_count,
            waiting=engine.waiting_count,
            pid=os.getpid(),
            grammar=self._grammars is not None,
        )
        return protocol.InfoReply(call, info)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_load(self, peer: _EmbeddedConnection, call: protocol.LoadCall) -> None:
        async with self._load_lock:
            try:
                await self._load_versions(call.policies)
            except EngineError as error:
                peer.send(protocol.RejectionReply(call.id, str(error)))
            except RuntimeError as error:
                # Torch is out of memory; the loaded versions are unchanged.
                log.warning("versions could not be loaded: %s", error)
                peer.send(
                    protocol.RejectionReply(call.id, f"the versions could not be loaded: {error}")
                )
            else:
                peer.send(protocol.LoadReply(call.id))
        await self._unload_unused()

    async def _load_versions(self, policies: tuple[PolicyRef, ...]) -> None:
        self.engine.check_capacity(policies)
        files = {}
        for ref in self.engine.unread_policies(policies):
            files[ref.version, ref.digest] = await asyncio.to_thread(self.engine.read_version, ref)
        await self._between_steps(self.engine.load_versions(policies, files))

    async def _unload_unused(self) -> None:
        async with self._load_lock:
            if self.engine.has_unused:
                await self._between_steps(self.engine.unload_unused())

    async def _between_steps(self, work: Generator[None]) -> None:
        least, share = _LOAD_TIME_SLICE
        started = time.perf_counter()
        for _ in work:
            now = time.perf_counter()
            if now - started >= max(least, share * self._step_seconds):
                await asyncio.sleep(0)
                started = time.perf_counter()

    async def run_steps(self) -> None:
        """Step the engine while it has work."""
        while True:
            if self.engine.has_unused and not self._load_lock.locked():
                self._start_task(self._unload_unused())
            if not self.engine.has_work:
                self._work_available.clear()
                await self._work_available.wait()
            started = time.perf_counter()
            out = self.engine.step()
            self._step_seconds = time.perf_counter() - started
            self._send_events(out)
            await asyncio.sleep(self.engine.retry_delay)

    def _send_events(self, out: list[StepEvent]) -> None:
        """Send the events of a step: one frame per client for all tokens."""
        steps: dict[_EmbeddedConnection, protocol.TokensReply] = {}
        for item in out:
            peer, key = item.seq.owner
            if isinstance(item, SequenceFailed):
                peer.seqs.pop(key, None)
                kind = GrammarError if item.grammar else EngineError
                peer.send(protocol.RejectionReply.of(key, kind(item.reason)))
                continue
            if isinstance(item, SequenceScored):
                peer.seqs.pop(key, None)
                peer.send(protocol.ScoreReply(key, protocol.pack_logprobs(item.logprobs)))
                continue
            step = steps.setdefault(peer, protocol.TokensReply([], [], []))
            step.ids.append(key)
            step.token_ids.append(item.token)
            step.logprobs.append(item.logprob)
            if item.seq.reused_tokens and len(item.seq.sampled_ids) == 1:
                step.cached[key] = item.seq.reused_tokens
            if item.top is not None:
                step.top[key] = item.top
            if item.finish is not None:
                step.finish[key] = item.finish
                peer.seqs.pop(key, None)
        for peer, step in steps.items():
            peer.send(step)


async def _run_server(config: Config) -> None:
    parent = os.getppid()
    # First: a second engine must fail before it loads a model.
    bound = bind_socket(config.engine_socket)
    try:
        engine = _load_engine(config)
        grammars = GrammarCompiler.for_model(
            resolve_model_path(config.model.path), engine.model.vocab_size
        )
        server = EmbeddedServer(engine, grammars)
        await serve_until_stopped(
            lambda: _EmbeddedConnection(server), bound, parent, server.run_steps()
        )
    finally:
        bound.close()
        config.engine_socket.unlink(missing_ok=True)


def _load_engine(config: Config) -> MultiModelEngine:
    torch.set_num_threads(config.engine.threads)
    engine = MultiModelEngine(
        EmbeddedModel.load(config.model, max_context=config.engine.max_context), config.engine
    )
    gc.collect()
    # The model's objects are permanent: exclude them from later collections.
    gc.freeze()
    log.info(
        "%s on %s, context %d", engine.model.name, engine.model.device, engine.model.context_length
    )
    return engine


def main(config: Config) -> None:
    """Serve the embedded engine at `config.engine_socket` until SIGTERM, or until the parent dies.

    Raise `ModelError` if the model cannot be served, `EngineError` if the socket is in use.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_server(config))
