"""The states of records in the frozen base: of the engine that serves it, or of a second one for the judge."""

from __future__ import annotations

import asyncio

from openclaw_rl.engines import registry
from openclaw_rl.engines.base import BASE_POLICY
from openclaw_rl.errors import EngineError
from openclaw_rl.judge import local_model
from openclaw_rl.judge.head.records import HeadRecord, RecordTokenizer
from openclaw_rl.protocols import EngineLink, StateEngine
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config
from openclaw_rl.types import States

MIN_CONTEXT = 2048
"""Tokens that a record may have at most; the parts are cut so that it has fewer in every language."""
# Seconds until an engine that starts is expected to answer.
_START_SECONDS = 1800.0


class BaseStates:
    """Reads records with one engine, one after the other."""

    def __init__(self, engine: EngineLink, files: ModelFiles, *, own_engine: bool) -> None:
        """`own_engine`: whether it is a second engine, which has no other client that loads its base."""
        assert isinstance(engine, StateEngine), "the settings were checked"
        self._engine = engine
        self._reader: StateEngine = engine
        self.files = files
        self._tokenizer = RecordTokenizer(files)
        self._slot = asyncio.Semaphore(1)
        self._own_engine = own_engine
        self.close = engine.close

    async def wait_ready(self) -> None:
        """Wait until the engine answers. Raises `EngineGone`, and `EngineError` if its context is too short."""
        info = await self._engine.wait_ready(_START_SECONDS)
        if info.context_length < MIN_CONTEXT:
            raise EngineError(
                f"the context of {info.model} is {info.context_length} tokens; a judge that reads states needs "
                f"{MIN_CONTEXT}. Set engine.max_context, or judge.kind rules"
            )
        if self._own_engine:
            await self._engine.load([BASE_POLICY])

    async def read(self, record: HeadRecord) -> States:
        """Return the states [K, S, D] of a record. Raises `EngineError` or `EngineGone`."""
        request = self._tokenizer.encode_record(record)
        async with self._slot:
            return await self._reader.read_states(request)


def connect_states(config: Config) -> BaseStates:
    """Return a reader of the base that is served; of the model at `judge.path`, if there is one.

    Raises `ModelError` if there is no such model.
    """
    own = config.judge.path is not None
    served = local_model.engine_config(config) if own else config
    key = "judge.path" if own else "model.path"
    files = ModelFiles.from_config(served.model, key=key)
    return BaseStates(registry.connect_engine(served), files, own_engine=own)
