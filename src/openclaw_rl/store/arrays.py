"""Ids, log-probabilities and masks as little-endian bytes: 4, 4 and 1 byte an item."""

from __future__ import annotations

import numpy as np

from openclaw_rl.types import Ids, Logprobs, Mask

_ID = np.dtype("<i4")
_LOGPROB = np.dtype("<f4")
_FLAG = np.dtype(np.bool_)


def pack_ids(ids: Ids) -> bytes:
    return np.asarray(ids, _ID).tobytes()


def unpack_ids(raw: bytes) -> Ids:
    """[n] int32. Raises `ValueError` when the bytes hold no whole number of items."""
    return np.frombuffer(_whole(raw, _ID, "ids"), _ID).astype(np.int32)


def pack_logprobs(logprobs: Logprobs) -> bytes:
    return np.asarray(logprobs, _LOGPROB).tobytes()


def unpack_logprobs(raw: bytes) -> Logprobs:
    """[n] float32. Raises `ValueError` when the bytes hold no whole number of items."""
    return np.frombuffer(_whole(raw, _LOGPROB, "logprobs"), _LOGPROB).astype(np.float32)


def pack_mask(mask: Mask) -> bytes:
    return np.asarray(mask, _FLAG).tobytes()


def unpack_mask(raw: bytes) -> Mask:
    """[n] bool."""
    return np.frombuffer(raw, _FLAG).copy()


def _whole(raw: bytes, kind: np.dtype[np.generic], what: str) -> bytes:
    if len(raw) % kind.itemsize:
        raise ValueError(f"{what}: expected a multiple of {kind.itemsize} bytes, got {len(raw)}")
    return raw
