"""Errors of the Tinker service as one line each. Pure: the SDK's classes are recognised by their names and fields."""

from __future__ import annotations

import re
from typing import Literal

_RETRYABLE = frozenset({408, 409, 429})
_KEY = re.compile(r"api[_ ]key", re.IGNORECASE)
_RANK = re.compile(r"\brank\b", re.IGNORECASE)
_CONTEXT = re.compile(r"context|too (many tokens|long)|max(imum)?[ _](seq|length)", re.IGNORECASE)
_MODEL = re.compile(r"base[ _]?model|model .*not (found|supported)|unsupported model", re.IGNORECASE)
_GONE = re.compile(r"\bmodel \S+ not loaded", re.IGNORECASE)
_UNREACHABLE = ("APIConnectionError", "APITimeoutError", "TimeoutError", "ConnectError", "ConnectTimeout")
MAX_CHARS = 300  # of a message of the service


def describe_error(error: BaseException, *, url: str | None, model: str) -> str:
    """Return what failed, what was expected and what to do, in one line. `url`: None is the SDK's own address."""
    where = f"the Tinker service at {url}" if url else "the Tinker service"
    said = " ".join(str(error).split())[:MAX_CHARS] or type(error).__name__
    status = getattr(error, "status_code", None)
    if status in (401, 403) or _KEY.search(said):
        return f"{where} refused the key ({said}). Set TINKER_API_KEY (tinker.api_key) to a key of this service"
    if status == 402:
        return f"{where} refused for billing ({said}). See to the account of this key"
    if is_unreachable(error):
        return f"{where} does not answer ({said}). Check the network and tinker.url (TINKER_ENDPOINT)"
    if status == 429:
        return f"{where} is still busy after all retries ({said}). Try again later"
    if is_model_gone(error):
        return (
            f"{where} no longer has a model of this session ({said}). Training makes its own again; for sampling, set "
            "tinker.sample_from to models"
        )
    if _RANK.search(said):
        return f"{where} does not take this rank ({said}). Set train.lora.rank to one that it offers"
    if _CONTEXT.search(said):
        return f"{where} refused a sequence as too long ({said}). Set engine.max_context to what it takes"
    if _MODEL.search(said):
        return missing_model(model, (), url=url) + f" ({said})"
    return f"{where} failed ({said})"


def classify_error(error: BaseException) -> Literal["absent", "too_long", "failed"]:
    """Return what failed: the service or the account, for a while or until something is set; a long sequence; else."""
    said, status = str(error), getattr(error, "status_code", None)
    if is_transient(error) or status in (401, 402, 403, 404) or _KEY.search(said) or _RANK.search(said):
        return "absent"
    return "too_long" if _CONTEXT.search(said) else "failed"


def is_unreachable(error: BaseException) -> bool:
    """Return whether the service did not answer at all, or answered 5xx after all retries."""
    status = getattr(error, "status_code", None)
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & set(_UNREACHABLE)) or isinstance(error, OSError) or (status or 0) >= 500


def is_model_gone(error: BaseException) -> bool:
    """Return whether the service lost a model that was made there, as an open server does that was started again."""
    return _GONE.search(str(error)) is not None


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later."""
    return is_unreachable(error) or is_model_gone(error) or getattr(error, "status_code", None) in _RETRYABLE


def missing_model(model: str, offered: tuple[str, ...], *, url: str | None) -> str:
    """Return the line for a model that the service does not have. `offered`: its models, if it lists them."""
    where = f"the Tinker service at {url}" if url else "the Tinker service"
    there = f" It has: {', '.join(sorted(offered)[:10])}." if offered else ""
    return f"{where} has no model {model!r}.{there} Set tinker.model to one that it has"
