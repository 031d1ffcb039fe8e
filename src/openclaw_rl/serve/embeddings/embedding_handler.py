"""Handle POST /v1/embeddings: the mean of the base model's last states over the tokens of a text, of length 1."""

from __future__ import annotations

import asyncio
from typing import cast

import numpy as np
from aiohttp import web

from openclaw_rl.common.large_requests import call_in
from openclaw_rl.errors import EngineError, EngineGone, RequestError
from openclaw_rl.protocols import StateEngine
from openclaw_rl.serve.auth import ApiKeys
from openclaw_rl.serve.chat_request import ReplyFailed, field_error
from openclaw_rl.serve.embeddings.embedding_request import (
    EmbeddingRequest,
    decode_request,
    encode_response,
)
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import GatewayConnection, json_response
from openclaw_rl.serve.model_names import parse_model
from openclaw_rl.serve.prompt_builder import BUILD_IN_THREAD_BYTES
from openclaw_rl.serve.request_body import check_value_count, read_body
from openclaw_rl.types import Ids, StateRequest, States

EMBEDDINGS_PATH = "/v1/embeddings"
_LAST_LAYER = 1.0
# A vector of zeros stays one.
_LEAST_LENGTH = 1e-12


class EmbeddingHandler:
    """Handler of embeddings, which are of the base model: they stay the same while the model learns."""

    def __init__(self, gateway: Gateway, keys: ApiKeys) -> None:
        self._gateway = gateway
        self._keys = keys

    async def post_embeddings(self, http_request: web.Request) -> web.Response:
        """Return the embeddings of all inputs. A ticket of an episode may not ask for them."""
        await self._keys.authenticate_owner(http_request)
        engine = self._state_engine()
        body = await read_body(http_request, self._gateway.config.serve)
        is_large = len(body) > BUILD_IN_THREAD_BYTES
        await call_in(check_value_count, body, in_thread=is_large)
        request = await call_in(decode_request, body, in_thread=is_large)
        deployment = cast(GatewayConnection, http_request.protocol).deployment
        model = self._check_model(deployment or request.model)
        texts = await asyncio.to_thread(self._encode_inputs, request)
        vectors = []
        for text in texts:
            vectors.append(await _read_vector(engine, text))
            _check_dimensions(request, vectors[0])
        tokens = sum(map(len, texts))
        answer = await asyncio.to_thread(encode_response, request, model, vectors, tokens)
        return json_response(answer)

    def _state_engine(self) -> StateEngine:
        """Return the engine. Raises `RequestError` if it reads no states."""
        engine = self._gateway.engine
        if isinstance(engine, StateEngine):
            return engine
        raise RequestError(
            f"the engine ({self._gateway.config.engine.backend}) returns no hidden states, so it gives no embeddings. "
            "They need engine.backend embedded; use another server for them.",
            code="embeddings_unsupported",
        )

    def _check_model(self, name: str) -> str:
        """Return the name of the model. Raises `RequestError` for an unknown one, and for a version after the base."""
        config = self._gateway.config
        model = parse_model(
            name,
            served=config.model.name,
            newest=self._gateway.versions.head,
            any_model=config.serve.any_model,
        )
        if model.version:
            raise field_error(
                "model",
                f"embeddings are of the base model, for all versions; send {config.model.name}.",
            )
        return model.name

    def _encode_inputs(self, request: EmbeddingRequest) -> list[Ids]:
        """Return the token ids of each input. Raises `RequestError` for ids that are unknown, and too many."""
        renderer = self._gateway.renderer
        limit = self._gateway.context_length
        texts = []
        for index, value in enumerate(request.inputs):
            place = f"input[{index}]"
            if isinstance(value, str):
                ids = renderer.encode_completion_prompt(value)
            else:
                if max(value) >= renderer.vocabulary_size:
                    raise field_error(
                        place,
                        f"token {max(value)} is outside the vocabulary of {renderer.vocabulary_size}; send text, or "
                        "ids of this model's tokenizer.",
                    )
                ids = np.array(value, dtype=np.int32)
            if not 0 < len(ids) <= limit:
                raise field_error(
                    place,
                    f"expected 1 to {limit} tokens, got {len(ids)}.",
                    code="context_length_exceeded" if len(ids) else None,
                )
            texts.append(ids)
        return texts


def _check_dimensions(request: EmbeddingRequest, vector: States) -> None:
    if request.dimensions not in (None, len(vector)):
        raise field_error(
            "dimensions",
            f"expected {len(vector)}, the width of the model, or none, got {request.dimensions}. Vectors of this model "
            "cannot be shortened.",
        )


async def _read_vector(engine: StateEngine, ids: Ids) -> States:
    """Return the embedding [D] of a text. Raises `RequestError` and `ReplyFailed`."""
    request = StateRequest(ids=ids, depths=(_LAST_LAYER,), spans=((0, len(ids)),))
    try:
        states = await engine.read_states(request)
    except EngineGone as error:
        raise ReplyFailed(f"{error}. Repeat the request", status=503, code="engine_gone") from error
    except EngineError as error:
        if not error.blames_request:
            raise ReplyFailed(str(error), status=500, code="engine_error") from error
        raise field_error("input", f"the engine refuses this text: {error}.") from error
    vector: States = states[0, 0]
    length = max(float(np.linalg.norm(vector)), _LEAST_LENGTH)
    return (vector / length).astype(np.float32)
