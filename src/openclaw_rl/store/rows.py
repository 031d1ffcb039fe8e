"""Conversion between store rows and the data types of `types.py`; structures are JSON, arrays are packed bytes."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np
from sqlalchemy import Row, Table

from openclaw_rl.common import message_hash
from openclaw_rl.errors import DamagedRow
from openclaw_rl.reasons import ReasonCode
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

log = logging.getLogger("openclaw_rl.store")

_encoder = msgspec.json.Encoder()
_any_decoder = msgspec.json.Decoder()
_sampling_decoder = msgspec.json.Decoder(Sampling)
_spans_decoder = msgspec.json.Decoder(tuple[Span, ...])
_votes_decoder = msgspec.json.Decoder(tuple[Vote, ...])
_strings_decoder = msgspec.json.Decoder(tuple[str, ...])
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_objects_decoder = msgspec.json.Decoder(list[dict[str, Any]])
_DECODE_ERRORS = (ValueError, TypeError, struct.error, RecursionError, msgspec.MsgspecError)
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


@contextmanager
def naming_damage(turn: str, what: str) -> Iterator[None]:
    """Raise `DamagedRow` for an error in the values of a row. `what`: the row, for the message."""
    try:
        yield
    except _DECODE_ERRORS as error:
        raise DamagedRow(turn, f"its {what} cannot be read ({error})") from error


def sampling_from_json(raw: bytes) -> Sampling:
    return _decode_json(_sampling_decoder, raw)


def message_from_json(raw: bytes) -> dict[str, Any]:
    return _decode_json(_object_decoder, raw)


def messages_from_json(raw: bytes) -> list[dict[str, Any]]:
    return _decode_json(_objects_decoder, raw)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@cache
def _shared_names(kind: Any, table: Table) -> tuple[str, ...]:
    return tuple(name for name in _field_names(kind) if name in table.c)


def from_row(kind: type[_T], row: Any, /, **converted: Any) -> _T:
    """Build a dataclass from the columns or attributes named like its fields; `converted`: all other fields."""
    build: Any = kind
    built: _T = build(
        **{name: getattr(row, name) for name in _field_names(build) if name not in converted},
        **converted,
    )
    return built


def to_row(table: Table, item: Any, /, **converted: Any) -> dict[str, Any]:
    """Return a row for `item`: its fields by column name. `converted`: values that replace fields, or other columns."""
    kind: Any = type(item)
    names = _shared_names(kind, table)
    return {name: getattr(item, name) for name in names if name not in converted} | converted


def request_from_row(row: Row[Any]) -> Request:
    """Build a request from a row of `exchanges` and `bodies`. If redacted, it has no messages, tools or token ids."""
    return from_row(
        Request,
        row,
        kind=Kind(row.kind) if row.kind else None,
        session_done=bool(row.session_done),
        capture=Capture(row.capture),
        messages=messages_from_json(row.messages) if row.messages is not None else (),
        tools=_decode_json(_objects_decoder, row.tools) if row.tools is not None else (),
        template=_decode_json(_object_decoder, row.template) if row.template is not None else {},
        marks=message_hash.unpack_marks(row.marks),
        sampling=sampling_from_json(row.sampling),
        prompt_ids=unpack_ids(row.prompt_ids or b""),
        lessons=_decode_json(_object_decoder, row.lessons) if row.lessons is not None else {},
        origin=Origin(row.origin) if row.origin else None,
        # The turn has it.
        untrainable=None,
    )


def reply_from_row(row: Row[Any]) -> Reply | None:
    """Build a reply from a row of `exchanges` and `replies`; None while it runs. If redacted, it has no content."""
    if row.finished_at is None:
        return None
    converted: dict[str, Any] = {
        "status": ExchangeStatus(row.status),
        "message": {},
        "response_ids": unpack_ids(row.response_ids or b""),
        "logprobs": unpack_logprobs(row.logprobs or b""),
        "mask": unpack_mask(row.mask or b""),
        "spans": (),
        "finish_reason": None,
        "mark": None,
    }
    if row.message is not None:
        converted["message"] = message_from_json(row.message)
    if row.response_ids is not None:
        converted["spans"] = _decode_json(_spans_decoder, row.spans)
    if row.finish_reason:
        converted["finish_reason"] = FinishReason(row.finish_reason)
    if row.mark:
        converted["mark"] = message_hash.unpack_marks(row.mark)[0]
    return from_row(Reply, row, **converted)


def exchange_from_row(row: Row[Any]) -> Exchange:
    """Build an exchange from a row of `exchanges`, `bodies` and `replies`. Raises `DamagedRow`."""
    with naming_damage(row.id, "request"):
        request = request_from_row(row)
    with naming_damage(row.id, "reply"):
        return Exchange(seq=row.seq, request=request, reply=reply_from_row(row))


def turn_from_row(row: Row[Any]) -> Turn:
    return from_row(
        Turn,
        row,
        state=TurnState(row.state),
        cause=_read_code(row.cause),
        untrainable_code=_read_code(row.untrainable_code),
        unlinked_code=_read_code(row.unlinked_code),
    )


def _read_code(value: str | None) -> ReasonCode | None:
    return None if value is None else ReasonCode(value)


def reaction_from_row(row: Row[Any], feedback: Sequence[Feedback]) -> Reaction:
    """Build a reaction. Raises `DamagedRow`."""
    with naming_damage(row.turn, "reaction"):
        messages = messages_from_json(row.messages)
    return from_row(Reaction, row, messages=tuple(messages), feedback=tuple(feedback))


def verdict_from_row(row: Row[Any]) -> Verdict:
    """Build a verdict. Raises `DamagedRow`."""
    with naming_damage(row.turn, "verdict"):
        votes = _decode_json(_votes_decoder, row.votes)
        hints = _decode_json(_strings_decoder, row.hints)
    code = _read_code(row.reason_code)
    return from_row(
        Verdict, row, votes=votes, hints=hints, explicit=bool(row.explicit), reason_code=code
    )


def votes_from_row(row: Row[Any]) -> tuple[Vote, ...]:
    """Return the votes of a row. Raises `DamagedRow`."""
    with naming_damage(row.turn, "votes"):
        votes: tuple[Vote, ...] = _decode_json(_votes_decoder, row.votes)
        return votes


def policy_from_row(row: Row[Any]) -> Policy:
    """Build a policy. Metrics, memory (moving averages) or digests that cannot be read count as empty."""
    columns = ("memory", "metrics", "files")
    memory, metrics, files = (
        _read_object(row.version, name, getattr(row, name) or b"{}") for name in columns
    )
    metrics = {name: float("nan") if value is None else value for name, value in metrics.items()}
    return from_row(
        Policy,
        row,
        state=PolicyState(row.state),
        memory=memory,
        metrics=metrics,
        files=files,
        reason_code=_read_code(row.reason_code),
    )


def _read_object(version: int, name: str, raw: bytes) -> dict[str, Any]:
    try:
        return _decode_json(_object_decoder, raw)
    except _DECODE_ERRORS as error:
        log.warning(
            "the %s of version %d cannot be read and count as empty: %s", name, version, error
        )
        return {}


def numbers_to_json(value: Any) -> bytes:
    """Return JSON bytes like `to_json`, for values that may have numpy scalars."""
    return to_json(_to_builtins(value))


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
    return np.frombuffer(_check_length(raw, _LOGPROB_DTYPE, "logprobs"), _LOGPROB_DTYPE).astype(
        np.float32
    )


def pack_mask(mask: Mask) -> bytes:
    return np.asarray(mask, _FLAG_DTYPE).tobytes()


def unpack_mask(raw: bytes) -> Mask:
    """Return [n] bool."""
    return np.frombuffer(raw, _FLAG_DTYPE).copy()


def _check_length(raw: bytes, kind: np.dtype[np.generic], what: str) -> bytes:
    if len(raw) % kind.itemsize:
        raise ValueError(f"{what}: expected a multiple of {kind.itemsize} bytes, got {len(raw)}")
    return raw
