"""Repair what JSON writers of JavaScript and Python send and JSON does not have: half surrogate pairs and NaN.

JavaScript clients cut the output of a tool in the middle of an emoji, and then send half of it with every request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.serve.chat_request import ChatRequest

DecodeRequest = Callable[[bytes, Mapping[str, str]], ChatRequest]
"""(body, headers) -> the request; raises `RequestError`."""

# A pair and any other escape are matched first, so that `\\ud83d` stays an escaped backslash and letters.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
# Surrogates that were encoded as if they were characters: a pair, or a half.
_ENCODED = re.compile(
    rb"(?P<pair>\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf])|\xed[\xa0-\xbf][\x80-\xbf]"
)
# Strings are matched first. One without an end is matched to the end of the body, so that the search is linear.
_NON_FINITE = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|(?P<number>\bNaN\b|-?\bInfinity\b)', re.DOTALL
)


def decode_repaired(decode: DecodeRequest, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
    """Decode a body; if it is refused and can be repaired, the repaired one. Raises `RequestError`."""
    try:
        return decode(body, headers)
    except RequestError:
        repaired, repairs = repair_json(body)
        if not repairs:
            raise
    request = decode(repaired, headers)
    return replace(request, degraded=(*repairs, *request.degraded))


def repair_json(body: bytes) -> tuple[bytes, tuple[Degradation, ...]]:
    """Return the body with U+FFFD for half surrogate pairs and texts for NaN and infinities, and the repairs."""
    repairs: list[Degradation] = []
    for kind, repair in _REPAIRS:
        repaired = repair(body)
        if repaired != body:
            repairs.append(kind)
        body = repaired
    return body, tuple(repairs)


def _replace_halves(body: bytes) -> bytes:
    body = _ENCODED.sub(_read_encoded, body)
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["half"] else match[0], body)


def _quote_numbers(body: bytes) -> bytes:
    if b"NaN" not in body and b"Infinity" not in body:
        return body
    return _NON_FINITE.sub(
        lambda match: b'"%s"' % match["number"] if match["number"] else match[0], body
    )


def _read_encoded(match: re.Match[bytes]) -> bytes:
    """Return the character of a pair of surrogates, each of three bytes, in UTF-8; U+FFFD for a half."""
    if not match["pair"]:
        return "\ufffd".encode()
    halves = match["pair"].decode("utf-8", "surrogatepass")
    return halves.encode("utf-16", "surrogatepass").decode("utf-16").encode()


_REPAIRS: Sequence[tuple[Degradation, Callable[[bytes], bytes]]] = (
    (Degradation.HALF_SURROGATE, _replace_halves),
    (Degradation.NON_FINITE_NUMBER, _quote_numbers),
)
