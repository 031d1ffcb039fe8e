"""Errors of the Tinker service as one line each. Pure: the SDK's classes are recognised by their names and fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

_RETRYABLE = frozenset({408, 409, 429})
_KEY = re.compile(r"api[_ ]key", re.IGNORECASE)
_RANK = re.compile(
    r"lora.*rank\b|(\b|_)rank\b.*\b(must|max\w*|at most|between|exceed|support|allow|less than)|max_rank\b",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context(?! (deadline|cancell?ed))|too (many tokens|long)|max(imum)?[ _](seq|length|model_len)"
    r"|\b(sequence|prompt|input|datum)\b.*\b(exceeds?|limit|maximum|longer than)\b",
    re.IGNORECASE,
)
_DEADLINE = re.compile(r"deadline exceeded|timed out", re.IGNORECASE)
_MODEL = re.compile(
    r"base[ _]?model|model .*not (found|supported)|unsupported model", re.IGNORECASE
)
_GONE = re.compile(r"\bmodel \S+ not loaded", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"(checkpoint|training[ _]run|tinker://).*(not (found|exist)|no longer)|not (found|exist).*(checkpoint|tinker://)",
    re.IGNORECASE,
)
_PROJECT = re.compile(r"\bproject(_id)?\b", re.IGNORECASE)
# Not "Sampler not found", which names something.
_NO_PATH = re.compile(r"(^|['\">]|404 )not found", re.IGNORECASE)
_SESSION = re.compile(r"\bsession\b", re.IGNORECASE)
_REQUEST_FAULTS = frozenset({400, 413, 422})
# The SDK's error of a call that the service took on and could not do.
_FAILED_REQUEST = "RequestFailedError"
_UNREADABLE = (
    "APIResponseValidationError",
    "JSONDecodeError",
    "AttributeError",
    "LookupError",
    "TypeError",
)
_UNREACHABLE = (
    "APIConnectionError",
    "APITimeoutError",
    "TimeoutError",
    "ConnectError",
    "ConnectTimeout",
)
# Of a message of the service.
MAX_CHARS = 300
_Explanation = tuple[str, str]
"""What the service did, and what to do."""
_EXPLANATIONS: tuple[tuple[re.Pattern[str], _Explanation], ...] = (
    (
        _CHECKPOINT,
        (
            "no longer has a checkpoint of a version",
            "Roll back to a version that it has, or to the base (`openclaw-rl rollback 0`)",
        ),
    ),
    (_RANK, ("does not take this rank", "Set train.lora.rank to one that it offers")),
    (
        _CONTEXT,
        ("refused a sequence as too long", "Set engine.max_context to what it takes"),
    ),
)
"""Failures that the service's words alone show; the first that fits counts."""
_BY_STATUS: Mapping[int, _Explanation] = {
    402: ("refused for billing", "See to the account of this key"),
    429: ("is still busy after all retries", "Try again later"),
}


def describe_error(error: BaseException, *, url: str | None, model: str) -> str:
    """Return what failed, what was expected and what to do, in one line. `url`: None is the SDK's own address."""
    where = f"the Tinker service at {url}" if url else "the Tinker service"
    text = " ".join(str(error).split())[:MAX_CHARS] or type(error).__name__
    explanation = _explain_refusal(error, text) or _explain_loss(error, text)
    if explanation is None and _MODEL.search(text):
        return missing_model(model, (), url=url) + f" ({text})"
    failure, cure = explanation or _explain_answer(error, text) or ("failed", "")
    return f"{where} {failure} ({text}){f'. {cure}' if cure else ''}"


def _explain_refusal(error: BaseException, text: str) -> _Explanation | None:
    """Return what was refused of the account, or that the service is not there; None for any other failure."""
    status = _status_of(error)
    is_of_key = _KEY.search(text) is not None
    is_of_project = _PROJECT.search(text) is not None and not is_of_key
    if status in (400, 403, 404) and is_of_project:
        return (
            "refused the project",
            "Set TINKER_PROJECT_ID (tinker.project_id) to one of this key",
        )
    if status in (401, 403) or is_of_key:
        return "refused the key", "Set TINKER_API_KEY (tinker.api_key) to a key of this service"
    if is_unreachable(error):
        return "does not answer", "Check the network and tinker.url (TINKER_ENDPOINT)"
    return None if status is None else _BY_STATUS.get(status)


def _explain_loss(error: BaseException, text: str) -> _Explanation | None:
    """Return what the service no longer has, or does not take; None for any other failure."""
    if is_session_gone(error):
        return "has ended this session", "The next call opens another one"
    if is_model_gone(error):
        return (
            "no longer has a model of this session",
            "Training makes its own again; for sampling, set tinker.sample_from to models",
        )
    for pattern, explanation in _EXPLANATIONS:
        if pattern.search(text):
            return explanation
    return None


def _explain_answer(error: BaseException, text: str) -> _Explanation | None:
    """Return what is wrong with the address; None if an answer of the service does not show it."""
    if _names_of(error) & set(_UNREADABLE):
        return (
            "gave an answer that its SDK cannot read",
            "Check that tinker.url (TINKER_ENDPOINT) is the service, and that no proxy answers in its place",
        )
    if _status_of(error) == 404 and _NO_PATH.search(text):
        return "has nothing at that address", "Check tinker.url (TINKER_ENDPOINT)"
    return None


def classify_error(error: BaseException) -> Literal["absent", "too_long", "failed"]:
    """Return what failed: the service or the account, for a while or until something is set; a long sequence; the call.

    The call failed only if the service says so. Any other error, such as an answer that is cut off, says nothing about
    the turns of a batch.
    """
    text = str(error)
    if is_transient(error) or not _blames_call(error):
        return "absent"
    is_of_account = _KEY.search(text) is not None
    is_of_base = _RANK.search(text) is not None
    if is_of_account or is_of_base:
        return "absent"
    if _CONTEXT.search(text):
        return "too_long"
    return "failed"


def _blames_call(error: BaseException) -> bool:
    if _FAILED_REQUEST in _names_of(error):
        return str(getattr(error, "category", "")).lower() != "server"
    return _status_of(error) in _REQUEST_FAULTS


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status. The SDK's error of a call that was taken on has it in its cause."""
    status: int | None = getattr(error, "status_code", None) or getattr(
        error.__cause__, "status_code", None
    )
    return status


def _names_of(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def is_unreachable(error: BaseException) -> bool:
    """Return whether the service did not answer at all, or answered 5xx after all retries."""
    return (
        bool(_names_of(error) & set(_UNREACHABLE))
        or isinstance(error, OSError)
        or (_status_of(error) or 0) >= 500
    )


def is_model_gone(error: BaseException) -> bool:
    """Return whether the service lost a model that was made there, as an open server does that was started again."""
    return _GONE.search(str(error)) is not None


def is_session_gone(error: BaseException) -> bool:
    """Return whether the service no longer knows the session, as after a long time without its heartbeats."""
    return _status_of(error) in (404, 410) and _SESSION.search(str(error)) is not None


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later."""
    if is_unreachable(error) or is_model_gone(error) or _status_of(error) in _RETRYABLE:
        return True
    return _DEADLINE.search(str(error)) is not None


def missing_model(model: str, offered: tuple[str, ...], *, url: str | None) -> str:
    """Return the line for a model that the service does not have. `offered`: its models, if it lists them."""
    where = f"the Tinker service at {url}" if url else "the Tinker service"
    there = f" It has: {', '.join(sorted(offered)[:10])}." if offered else ""
    return f"{where} has no model {model!r}.{there} Set tinker.model to one that it has"
