"""Conversion between store rows and the data types of `types.py`; structures are JSON, arrays are packed bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from sqlalchemy import Row

from openclaw_rl.common import message_hash
from openclaw_rl.store import rows
from openclaw_rl.types import (
    Capture,
    Exchange,
    ExchangeStatus,
    Feedback,
    FinishReason,
    Ids,
    Kind,
    Logprobs,
    Mask,
    Origin,
    Policy,
    PolicyState,
    Reaction,
    Reply,
    Request,
    Sampling,
    Span,
    Turn,
    TurnState,
    Verdict,
    Vote,
)

_encoder = msgspec.json.Encoder()
_any_decoder = msgspec.json.Decoder()
_sampling_decoder = msgspec.json.Decoder(Sampling)
_spans_decoder = msgspec.json.Decoder(tuple[Span, ...])
_votes_decoder = msgspec.json.Decoder(tuple[Vote, ...])
_strings_decoder = msgspec.json.Decoder(tuple[str, ...])
_T = TypeVar("_T")


def to_json(value: Any) -> bytes:
    """Return JSON bytes. Lone surrogates, which clients do send and UTF-8 cannot encode, become escapes."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def from_json(raw: bytes) -> Any:
    """Return the value that `to_json` wrote."""
    return _decode_json(_any_decoder, raw)


def _decode_json(decoder: msgspec.json.Decoder[_T], raw: bytes) -> _T:
    """Decode the output of `to_json` to the decoder's type; uses `json` for lone surrogates, which msgspec rejects."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(raw), decoder.type)


def request_from_row(row: Row[Any]) -> Request:
    """Build a request from a row of `exchanges` and `bodies`. If redacted, it has no messages, tools or token ids."""
    return Request(
        id=row.id,
        scope=row.scope,
        agent=row.agent,
        user=row.user,
        session=row.session,
        kind=Kind(row.kind) if row.kind else None,
        session_done=bool(row.session_done),
        dialect=row.dialect,
        capture=Capture(row.capture),
        messages=from_json(row.messages) if row.messages is not None else (),
        tools=from_json(row.tools) if row.tools is not None else (),
        template=from_json(row.template) if row.template is not None else {},
        previous=row.previous,
        marks=message_hash.unpack_marks(row.marks),
        sampling=_decode_json(_sampling_decoder, row.sampling),
        prompt_ids=rows.unpack_ids(row.prompt_ids or b""),
        version=row.version,
        identity=row.identity,
        admitted_at=row.admitted_at,
        origin=Origin(row.origin) if row.origin else None,
    )


def reply_from_row(row: Row[Any]) -> Reply | None:
    """Build a reply from a row of `exchanges` and `replies`; None while it runs. If redacted, it has no content."""
    if row.finished_at is None:
        return None
    redacted = row.response_ids is None
    return Reply(
        id=row.id,
        status=ExchangeStatus(row.status),
        message=from_json(row.message) if row.message is not None else {},
        response_ids=rows.unpack_ids(row.response_ids or b""),
        logprobs=rows.unpack_logprobs(row.logprobs or b""),
        mask=rows.unpack_mask(row.mask or b""),
        spans=() if redacted else _decode_json(_spans_decoder, row.spans),
        finish_reason=FinishReason(row.finish_reason) if row.finish_reason else None,
        mark=message_hash.unpack_marks(row.mark)[0] if row.mark else None,
        error=row.error,
        first_token_at=row.first_token_at,
        finished_at=row.finished_at,
    )


def exchange_from_row(row: Row[Any]) -> Exchange:
    """Build an exchange from a row of `exchanges`, `bodies` and `replies`."""
    return Exchange(seq=row.seq, request=request_from_row(row), reply=reply_from_row(row))


def turn_from_row(row: Row[Any]) -> Turn:
    return Turn(
        id=row.id,
        session=row.session,
        parent=row.parent,
        state=TurnState(row.state),
        reason=row.reason,
        untrainable=row.untrainable,
        relation=row.relation,
        relation_of=row.relation_of,
        unlinked=row.unlinked,
    )


def feedback_from_row(row: Row[Any]) -> Feedback:
    return Feedback(
        id=row.id,
        scope=row.scope,
        target=row.target,
        score=row.score,
        comment=row.comment,
        correction=row.correction,
        given_at=row.given_at,
    )


def reaction_from_row(row: Row[Any], feedback: Sequence[Feedback]) -> Reaction:
    return Reaction(
        turn=row.turn,
        revision=row.revision,
        messages=tuple(from_json(row.messages)),
        feedback=tuple(feedback),
        source=row.source,
        how=row.how,
        at=row.at,
    )


def verdict_from_row(row: Row[Any]) -> Verdict:
    return Verdict(
        turn=row.turn,
        revision=row.revision,
        judge=row.judge,
        score=row.score,
        votes=_decode_json(_votes_decoder, row.votes),
        hints=_decode_json(_strings_decoder, row.hints),
        explicit=bool(row.explicit),
        reason=row.reason,
        at=row.at,
    )


def policy_row(policy: Policy, state: PolicyState) -> dict[str, Any]:
    return {
        "version": policy.version,
        "parent": policy.parent,
        "state": state.value,
        "path": policy.path,
        "digest": policy.digest,
        "base": policy.base,
        "identity": policy.identity,
        "memory": to_json(_to_builtins(policy.memory)),
        "metrics": to_json(_to_builtins(policy.metrics)),
        "reason": policy.reason,
        "created_at": policy.created_at,
    }


def policy_from_row(row: Row[Any]) -> Policy:
    return Policy(
        version=row.version,
        parent=row.parent,
        state=PolicyState(row.state),
        path=row.path,
        digest=row.digest,
        base=row.base,
        identity=row.identity,
        memory=from_json(row.memory),
        metrics={name: float("nan") if value is None else value for name, value in from_json(row.metrics).items()},
        reason=row.reason,
        created_at=row.created_at,
    )


def _to_builtins(value: Any) -> Any:
    """Convert numpy scalars to Python numbers, recursively."""
    if isinstance(value, Mapping):
        return {str(key): _to_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_builtins(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


_ID_DTYPE = np.dtype("<i4")
_LOGPROB_DTYPE = np.dtype("<f4")
_FLAG_DTYPE = np.dtype(np.bool_)


def pack_ids(ids: Ids) -> bytes:
    return np.asarray(ids, _ID_DTYPE).tobytes()


def unpack_ids(raw: bytes) -> Ids:
    """Return [n] int32. Raises `ValueError` if the length is not a multiple of the item size."""
    return np.frombuffer(_check_length(raw, _ID_DTYPE, "ids"), _ID_DTYPE).astype(np.int32)


def pack_logprobs(logprobs: Logprobs) -> bytes:
    return np.asarray(logprobs, _LOGPROB_DTYPE).tobytes()


def unpack_logprobs(raw: bytes) -> Logprobs:
    """Return [n] float32. Raises `ValueError` if the length is not a multiple of the item size."""
    return np.frombuffer(_check_length(raw, _LOGPROB_DTYPE, "logprobs"), _LOGPROB_DTYPE).astype(np.float32)


def pack_mask(mask: Mask) -> bytes:
    return np.asarray(mask, _FLAG_DTYPE).tobytes()


def unpack_mask(raw: bytes) -> Mask:
    """Return [n] bool."""
    return np.frombuffer(raw, _FLAG_DTYPE).copy()


def _check_length(raw: bytes, kind: np.dtype[np.generic], what: str) -> bytes:
    if len(raw) % kind.itemsize:
        raise ValueError(f"{what}: expected a multiple of {kind.itemsize} bytes, got {len(raw)}")
    return raw
