"""Protocol between gateway and engine process: length-prefixed msgpack frames over a Unix socket.

The client chooses an `id` for every call, and the
replies repeat it. The tokens of one decode step, for all streams of a connection, are sent in one frame.
Arrays are little-endian bytes: ids int32, log-probabilities and states float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from openclaw_rl.common import frames
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.types import Ids, Logprobs, PolicyRef, Sampling, States


class GenerateCall(msgspec.Struct, array_like=True, tag="generate", frozen=True):
    id: int
    version: int
    prompt_ids: bytes
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    top_logprobs: int = 0
    background: bool = False


class CancelCall(msgspec.Struct, array_like=True, tag="cancel", frozen=True):
    id: int


class LoadCall(msgspec.Struct, array_like=True, tag="load", frozen=True):
    id: int
    policies: tuple[PolicyRef, ...]


class ScoreCall(msgspec.Struct, array_like=True, tag="score", frozen=True):
    id: int
    version: int
    prompt_ids: bytes
    response_ids: bytes
    temperature: float


class StatesCall(msgspec.Struct, array_like=True, tag="read", frozen=True):
    """See `types.StateRequest`. Answered behind all replies."""

    id: int
    ids: bytes
    depths: tuple[float, ...]
    spans: tuple[tuple[int, int], ...]
    shared: int


class InfoCall(msgspec.Struct, array_like=True, tag="ask", frozen=True):
    id: int


class TokensReply(msgspec.Struct, array_like=True, tag="tokens", frozen=True):
    """Tokens of one decode step, in columns: stream `ids[i]` got `token_ids[i]`. The mappings are sparse."""

    ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    finish: dict[int, str] = {}
    top: dict[int, tuple[tuple[int, float], ...]] = {}
    # Sent with a stream's first token: prompt tokens found in the prefix cache.
    cached: dict[int, int] = {}


class LoadReply(msgspec.Struct, array_like=True, tag="loaded", frozen=True):
    id: int


class ScoreReply(msgspec.Struct, array_like=True, tag="scores", frozen=True):
    id: int
    logprobs: bytes


class StatesReply(msgspec.Struct, array_like=True, tag="states", frozen=True):
    """States [K, S, D] of a `StatesCall`; `shape`: (K, S, D)."""

    id: int
    shape: tuple[int, int, int]
    states: bytes


class RejectionReply(msgspec.Struct, array_like=True, tag="failed", frozen=True):
    """The call was rejected; the engine continues to run."""

    id: int
    message: str
    kind: str = EngineError.__name__  # class of the error

    @classmethod
    def of(cls, id_: int, error: EngineError) -> RejectionReply:
        """Return the reply from which `errors.rebuild_error` makes the same error again."""
        return cls(id_, str(error), type(error).__name__)


class InfoReply(msgspec.Struct, array_like=True, tag="info", frozen=True):
    id: int
    info: EngineInfo


EngineCall = GenerateCall | CancelCall | LoadCall | ScoreCall | StatesCall | InfoCall
EngineReply = TokensReply | LoadReply | ScoreReply | StatesReply | RejectionReply | InfoReply

_encoder = msgspec.msgpack.Encoder()
call_decoder = msgspec.msgpack.Decoder(EngineCall)
reply_decoder = msgspec.msgpack.Decoder(EngineReply)


def encode_frame(message: EngineCall | EngineReply) -> bytes:
    """Encode a message as one frame."""
    return frames.encode_frame(_encoder.encode(message))


def pack_ids(ids: Ids | Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(raw: bytes) -> Ids:
    return np.frombuffer(raw, dtype="<i4")


def pack_logprobs(logprobs: Logprobs | Sequence[float]) -> bytes:
    return np.asarray(logprobs, dtype="<f4").tobytes()


def pack_states(states: States) -> bytes:
    return np.asarray(states, dtype="<f4").tobytes()


def unpack_states(raw: bytes, shape: tuple[int, int, int]) -> States:
    return np.frombuffer(raw, dtype="<f4").reshape(shape)


def unpack_logprobs(raw: bytes) -> Logprobs:
    return np.frombuffer(raw, dtype="<f4")
