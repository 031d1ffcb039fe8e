"""The engine: `openclaw_rl.protocols.EngineLink` without a model."""

import itertools

import numpy as np
from tokenizers import Tokenizer

from echo_integration.settings import EchoConfig
from openclaw_rl.engines.base import check_capacity
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.registry import section_of
from openclaw_rl.types import Chunk

CONTEXT_TOKENS = 4096
LOGPROB = -0.5


class EchoEngine:
    """Streams the tokens of `echo.reply`, each with the same log-probability."""

    epoch = 1
    connected = True

    def __init__(self, config):
        self._model = config.model.path
        self._most = config.engine.max_loaded_versions
        self._versions = {0}
        tokenizer = Tokenizer.from_file(
            str(ModelFiles.from_config(config.model).folder / "tokenizer.json")
        )
        text = section_of(config, "echo", EchoConfig).reply
        self._reply = tokenizer.encode(text, add_special_tokens=False).ids

    async def generate(self, generation):
        if generation.version not in self._versions:
            raise EngineError(f"version {generation.version} is not loaded")
        limit = generation.sampling.max_tokens or CONTEXT_TOKENS
        tokens = itertools.cycle([*self._reply, *generation.stop_token_ids[:1]])
        for number, token in enumerate(tokens, 1):
            finish = "length" if number == limit else None
            if token in generation.stop_token_ids:
                finish = "stop"
            yield Chunk(token_ids=(token,), logprobs=(LOGPROB,), finish=finish)
            if finish is not None:
                return

    async def score(self, *, version, prompt_ids, response_ids, temperature):
        return np.full(len(response_ids), LOGPROB, np.float32)

    async def load(self, policies):
        check_capacity(policies, (), self._most)
        self._versions = {policy.version for policy in policies}

    async def info(self):
        return EngineInfo(
            model=self._model,
            context_length=CONTEXT_TOKENS,
            device="echo",
            dtype="",
            versions=tuple(sorted(self._versions)),
        )

    async def wait_ready(self, timeout):  # noqa: ASYNC109
        return await self.info()

    async def close(self):
        pass
