"""Local judge model: a second engine beside the policy's, with its own weights and a socket in the home.

The engine is of the same kind as the policy's, unless its states are read and that kind cannot. It loads only its base
model. So it is never the policy that is being
trained, and no conversation leaves the machine.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from openclaw_rl.engines import registry
from openclaw_rl.errors import EngineError, JudgeError, RequestError
from openclaw_rl.judge.vote_parser import check_answer
from openclaw_rl.protocols import EngineLink
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, EndpointConfig
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.types import Generation, PolicyRef, Sampling

ENGINE_PROCESS = "judge-engine"
STATE_BACKEND = "embedded"
"""Engine of a model whose states are read, where the policy's engine gives none."""
_BASE_POLICY = PolicyRef(version=0, path=None, digest="")


def is_configured(config: Config) -> bool:
    """Whether the judge uses a local model: the llm judge asks it, the auto judge reads its states."""
    return config.judge.kind in ("llm", "auto") and config.judge.path is not None


def engine_config(config: Config) -> Config:
    """Return the settings of the judge's engine: the policy's with another model, and a subfolder as home."""
    model = {"path": config.judge.path, "tokenizer": None, "name": "judge"}
    engine: dict[str, Any] = {
        "url": None,
        "api_key": None,
        "args": (),
        "max_loaded_versions": 2,
        "gpus": config.judge.gpus,
    }
    if config.judge.kind == "auto" and not engine_spec(config).reads_states:
        engine["backend"] = STATE_BACKEND
    return config.model_copy(
        update={
            "home": str(config.home_dir / "judge"),
            "model": config.model.model_copy(update=model),
            "engine": config.engine.model_copy(update=engine),
        }
    )


def model_files(config: Config) -> ModelFiles:
    """Return the files of the judge's model. Raises `ModelError` if there is no such model."""
    return ModelFiles.from_config(engine_config(config).model, key="judge.path")


def connect_model(config: Config) -> LocalModel:
    """Return a client for the judge's engine. Raises `ModelError` if there is no such model."""
    theirs = engine_config(config)
    renderer = Renderer(model_files(config))
    return LocalModel(
        registry.connect_engine(theirs), renderer, config.judge, url=str(theirs.engine_socket)
    )


class LocalModel:
    """Chat model on a local engine, with the interface of `chat_client.ChatClient`."""

    def __init__(
        self, engine: EngineLink, renderer: Renderer, config: EndpointConfig, *, url: str
    ) -> None:
        """`url`: address of the engine for messages."""
        self._engine = engine
        self._renderer = renderer
        self._config = config
        self.url = url
        self.close = engine.close
        self._request_numbers = itertools.count(1)
        # Connection epoch in which the base was loaded.
        self._loaded_epoch = -1
        self._load_lock = asyncio.Lock()

    async def complete_chat(self, messages: list[dict[str, str]]) -> str:
        """Return the answer's text without reasoning, never empty. Raises `JudgeError` with what happened instead."""
        try:
            async with asyncio.timeout(self._config.timeout):
                return await self._generate_answer(messages)
        except TimeoutError:
            raise JudgeError(
                f"no answer within {self._config.timeout:g} s (judge.timeout)"
            ) from None
        except (EngineError, RequestError) as error:
            raise JudgeError(f"the judge's own engine: {error}") from None

    async def _generate_answer(self, messages: list[dict[str, str]]) -> str:
        context = await self._ensure_loaded()
        prompt = self._renderer.render(messages)
        remaining = context - len(prompt.prompt_ids)
        if remaining < 1:
            raise JudgeError(
                f"the prompt has {len(prompt.prompt_ids)} tokens, judge.path has a context of {context}"
            )
        text = self._renderer.new_reply_decoder(thinking=prompt.thinking, tools=())
        generation = Generation(
            id=f"judge-{next(self._request_numbers)}",
            version=_BASE_POLICY.version,
            prompt_ids=prompt.prompt_ids,
            sampling=Sampling(
                temperature=self._config.temperature,
                max_tokens=min(self._config.max_tokens, remaining),
            ),
            stop_token_ids=self._renderer.stop_token_ids,
        )
        finish = None
        async for chunk in self._engine.generate(generation):
            text.push(chunk.token_ids)
            finish = chunk.finish or finish
        text.finish()
        return check_answer(text.parser.content, finish, "judge")

    async def _ensure_loaded(self) -> int:
        """Return the context length in tokens. Loads the base again if the engine was restarted."""
        async with self._load_lock:
            info = await self._engine.info()
            if self._engine.epoch != self._loaded_epoch:
                await self._engine.load([_BASE_POLICY])
                self._loaded_epoch = self._engine.epoch
            return info.context_length
