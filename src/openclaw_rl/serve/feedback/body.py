"""The body of `POST /v1/feedback`, decoded and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import check_id_length, field_error
from openclaw_rl.serve.dialects.openai_responses_input import response_id_of
from openclaw_rl.serve.dialects.validation import decode_json
from openclaw_rl.serve.feedback.values import FeedbackValue, UnknownValue, read_value
from openclaw_rl.store.feedback.matching import ReplyMatch

_DIGEST_BYTES = 16
_NO_OPINION = FeedbackValue(None)


class _MatchBody(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    session: str | None = None
    user: str | None = None
    client_message_id: str | None = None


class _FeedbackBody(msgspec.Struct):
    id: str | None = None
    target: str | None = None
    match: _MatchBody | None = None
    score: Any = None
    thumbs: str | None = None
    scale: str | None = None
    comment: str | None = None
    correction: str | None = None
    by: str | None = None
    idempotency_key: str | None = None
    retract: bool = False


_decoder = msgspec.json.Decoder(_FeedbackBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRequest:
    """A request to give feedback, or to take it back (`retract`).

    Exactly one of `target` and `match` says which reply it is on; a retraction may name the idempotency key of the
    feedback in place of both.
    """

    target: str | None
    match: ReplyMatch | None
    score: int | None
    comment: str | None
    correction: str | None
    given_by: str | None
    idempotency_key: str | None
    retract: bool
    digest: bytes  # 16 bytes: keyed hash of the body without the idempotency key

    @property
    def says_something(self) -> bool:
        """Whether there is anything to record."""
        return self.score is not None or bool(self.comment or self.correction)


def parse_feedback(raw: bytes, header_key: str | None, secret: bytes) -> FeedbackRequest:
    """Decode a body. `header_key`: of the header `Idempotency-Key`. Raises `RequestError` that names the field."""
    body = decode_json(_decoder, raw)
    key = _read_key(body.idempotency_key, header_key)
    target, match = _read_reply(body, has_key=key is not None)
    opinion = _NO_OPINION if body.retract else _read_opinion(body)
    return FeedbackRequest(
        target=target,
        match=match,
        score=opinion.score,
        comment=body.comment or None,
        correction=body.correction or None,
        given_by=check_id_length(body.by, "by") if body.by else None,
        idempotency_key=key,
        retract=body.retract,
        digest=_hash_body(raw, secret),
    )


def _read_key(in_body: str | None, in_header: str | None) -> str | None:
    if in_body and in_header and in_body != in_header:
        raise field_error(
            "idempotency_key", "the header Idempotency-Key has another one; send one of them."
        )
    key = in_body or in_header
    return check_id_length(key, "idempotency_key") if key else None


def _read_reply(body: _FeedbackBody, *, has_key: bool) -> tuple[str | None, ReplyMatch | None]:
    """Return the id of the reply, or what is known of it."""
    named = [name for name in ("id", "target", "match") if getattr(body, name) is not None]
    if len(named) > 1:
        raise field_error(named[1], f"{named[0]} names a reply, too; send one of them.")
    if not named:
        _check_needs_no_reply(body, has_key=has_key)
        return None, None
    if body.match is not None:
        return None, _read_match(body.match)
    id_ = body.target if body.id is None else body.id
    assert id_ is not None
    # An item's id stands for the response that it belongs to.
    return response_id_of(id_) or id_, None


def _check_needs_no_reply(body: _FeedbackBody, *, has_key: bool) -> None:
    """Raise `RequestError` unless the key of the feedback says what is taken back."""
    if not (body.retract and has_key):
        raise field_error(
            "id", "expected the id of a reply (id or target), or match with what is known of it."
        )


def _read_match(match: _MatchBody) -> ReplyMatch:
    values = {name: getattr(match, name) for name in match.__struct_fields__}
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        fields = ", ".join(values)
        raise field_error("match", f"expected one or more of {fields}, got none of them.")
    for name, value in known.items():
        if not value.strip():
            raise field_error(f"match.{name}", "expected a value, got white space.")
        if name != "text":
            check_id_length(value, f"match.{name}")
    return ReplyMatch(**known)


def _read_opinion(body: _FeedbackBody) -> FeedbackValue:
    """Return the opinion of `score` and `thumbs`, which must agree."""
    score = _read_field("score", body.score, body.scale)
    thumbs = _read_field("thumbs", body.thumbs, None)
    if score is not None and thumbs is not None and score != thumbs:
        raise field_error(
            "thumbs", f"{body.thumbs} and score {body.score} disagree; send one of them."
        )
    opinion = score or thumbs
    if opinion is None and not body.comment and not body.correction:
        raise field_error(
            "score", "expected score, thumbs, comment or correction, got none of them."
        )
    return opinion or _NO_OPINION


def _read_field(name: str, value: Any, scale: str | None) -> FeedbackValue | None:
    if value is None:
        return None
    try:
        return read_value(value, scale)
    except UnknownValue as error:
        raise field_error(name, f"{error}.") from None


def _hash_body(raw: bytes, secret: bytes) -> bytes:
    values = msgspec.json.decode(raw)
    values.pop("idempotency_key", None)
    try:
        text = json.dumps(values, sort_keys=True)
    except RecursionError:
        raise RequestError("the body is nested too deeply.") from None
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES, key=secret).digest()
