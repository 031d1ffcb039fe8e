"""Request validation shared by all dialects: JSON with errors that name the field, sampling values, messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from openclaw_rl.common.images.image_prompt import IMAGE_TYPE
from openclaw_rl.errors import RequestError, json_type_name
from openclaw_rl.render.chat_template import content_text
from openclaw_rl.serve.chat_request import MIN_TEMPERATURE, check_id_length, field_error
from openclaw_rl.types import Kind, Message, Sampling

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_IMAGE_ROLES = frozenset({"user", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
OPTIONAL_TEXTS = ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id")
TOOL_ROLES = frozenset({"tool", "function"})
NON_TEXT_PARTS = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "document": "a document",
    "file": "a file",
    "input_file": "a file",
    "container_upload": "a file",
    "input_audio": "a recording",
}
"""Part types that are not text, and their names in error messages."""
_IMAGE_PARTS = frozenset(kind for kind, name in NON_TEXT_PARTS.items() if name == "an image")
INT32_MAX = 2**31 - 1
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_PATH_MARK = " - at `$"
_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")
_T = TypeVar("_T")


class RequestBody(msgspec.Struct, kw_only=True):
    """Fields of a body that every dialect accepts, also those that are not in its specification."""

    model: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    min_tokens: int | None = None


class OpenAIBody(RequestBody, kw_only=True):
    """Fields of a body that both of OpenAI's dialects accept."""

    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    session_id: str | None = None
    turn_type: str | None = None
    session_done: bool | None = None

    def read_user(self) -> str:
        """Return who asks: `user`, or the field that OpenAI's clients send in its place. Raises `RequestError`."""
        return check_id_length(self.user or self.safety_identifier or "", "user")


def decode_json(decoder: msgspec.json.Decoder[_T], body: bytes, place: str = "") -> _T:
    """Decode JSON. `place`: path of `body` within the request. Raises `RequestError` that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _validation_error(error, place) from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not valid UTF-8: {error.reason} at byte {error.start}."
        ) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError(f"the body is not valid JSON: {error}.") from None


def _validation_error(error: msgspec.ValidationError, place: str) -> RequestError:
    """Return the error for one of msgspec: `<problem> - at `$.<path>``, where the path may be absent."""
    problem, _, path = str(error).partition(_PATH_MARK)
    # A key that msgspec does not name is `[...]`.
    path = path.removesuffix("`").removeprefix(".").split("[...]", 1)[0].rstrip(".")
    missing = _MISSING_FIELD.search(str(error))
    names = (place, path, missing.group(1) if missing else "")
    param = ".".join(filter(None, names)).replace(".[", "[")
    problem = f"{problem[:1].lower()}{problem[1:]}"
    return RequestError(f"{param or 'body'}: {problem}.", param=param or None)


def read_kind(value: str | None, param: str) -> Kind | None:
    """Return the `Kind` of a client's value; None if it is empty."""
    if not value:
        return None
    # Practice is no client's.
    kinds = {kind.value: kind for kind in (Kind.MAIN, Kind.SIDE)}
    if (kind := kinds.get(value.strip().lower())) is None:
        raise field_error(param, f"expected main or side, got {value[:40]!r}.")
    return kind


def printable_header(text: str) -> str:
    """Return at most 60 characters of a client's text in printable ASCII, for use in a header."""
    return _UNPRINTABLE.sub("?", text[:60])


def part_type(part: Any) -> str:
    """Return the type of a content part; "" if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def image_placeholder(kind: str) -> str | None:
    """Return text that replaces a part of a tool result which no model reads, or this one does not; None for text."""
    what = NON_TEXT_PARTS.get(kind)
    return what and f"(The tool gave {what}, which this model cannot see.)"


def read_image(part: Any) -> dict[str, Any] | None:
    """Return an image part of any dialect as `{"type": "image", "url": ...}`; None for other parts.

    Without a URL in it, `url` is empty. `images/image_admission.py`, which knows the model, reads or refuses the image.
    """
    if part_type(part) not in _IMAGE_PARTS:
        return None
    value = part.get("image_url", part.get("url"))
    url = value.get("url") if isinstance(value, dict) else value
    return {"type": IMAGE_TYPE, "url": url if isinstance(url, str) else ""}


def read_tool_part(part: Any) -> Any:
    """Return a part of a tool result with text in the place of what no model reads: an error would end the agent."""
    if (image := read_image(part)) is not None:
        return image
    text = image_placeholder(part_type(part))
    return part if text is None else {"type": "text", "text": text}


def read_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a chat message with the parts that `read_tool_part` and `read_image` return."""
    content = message.get("content")
    read_part = _PART_READERS.get(str(message.get("role")))
    if read_part is None or not isinstance(content, list):
        return message
    return message | {"content": [read_part(part) for part in content]}


def _read_user_part(part: Any) -> Any:
    return read_image(part) or part


_PART_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TOOL_ROLES, read_tool_part),
    "user": _read_user_part,
}
"""Role of a chat message -> reader of a part of its content; no reader: the part stays as it is."""


def read_top_logprobs(top: int | None) -> int:
    if not 0 <= (top or 0) <= MAX_TOP_LOGPROBS:
        raise field_error("top_logprobs", f"expected 0 to {MAX_TOP_LOGPROBS}, got {top}.")
    return top or 0


def check_message(message: Mapping[str, Any], place: str) -> None:
    """Check a chat message. Raises `RequestError` for a wrong role, content, tool call or type of an optional key."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise field_error(f"{place}.role", f"expected one of {sorted(_ROLES)}, got {role!r}.")
    _check_content(message.get("content"), f"{place}.content", role)
    if message.get("tool_calls") is not None:
        check_tool_calls(message["tool_calls"], f"{place}.tool_calls")
    for key in OPTIONAL_TEXTS:
        value = message.get(key)
        if not isinstance(value, str | None):
            raise field_error(f"{place}.{key}", f"expected a string, got {json_type_name(value)}.")


def unreadable_part(place: str, part: Any) -> RequestError:
    """Return the error for a part that is neither text nor an image where images are read."""
    where = (
        "; images are read in user messages and tool results"
        if part_type(part) in _IMAGE_PARTS
        else ""
    )
    return field_error(place, f"got {part_name(part)}; expected text{where}.")


def _check_content(content: Any, place: str, role: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        got = json_type_name(content)
        raise field_error(place, f"expected a string or a list of parts, got {got}.")
    for index, part in enumerate(content):
        if not isinstance(part, str):
            check_part(part, f"{place}[{index}]", role)


def check_part(part: Any, place: str, role: str) -> None:
    """Check a content part of a message of `role`. Raises `RequestError` if it is neither text nor a readable image."""
    kind = part_type(part)
    if kind == IMAGE_TYPE and role in _IMAGE_ROLES:
        return
    if kind not in _TEXT_PARTS:
        raise unreadable_part(place, part)
    if not isinstance(part.get("text", part.get("refusal")), str):
        raise field_error(f"{place}.text", "expected a string.")


def take_prefix(raw: list[bytes], messages: list[Any], name: str) -> Message:
    """Remove the last message, which the reply continues, and return it. `name`: the field that requires it."""
    last = messages[-1]
    has_text = content_text(last.get("content")).strip()
    if last.get("role") != "assistant" or not has_text or last.get("tool_calls"):
        raise field_error(
            name, "a reply continues a last message with role assistant, text, and no tool calls."
        )
    raw.pop()
    removed: Message = messages.pop()
    return removed


def part_name(part: Any) -> str:
    """Describe a part that is not text, for error messages."""
    if not isinstance(part, dict):
        return json_type_name(part)
    return NON_TEXT_PARTS.get(part_type(part)) or f"a part of type {str(part.get('type'))[:60]!r}"


def check_tool_calls(calls: Any, place: str) -> None:
    """Check the tool calls of a chat message. Raises `RequestError` that names the call."""
    if not isinstance(calls, list):
        raise field_error(place, f"expected a list, got {json_type_name(calls)}.")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise field_error(f"{place}[{index}].function", "expected an object with a name.")
        if not isinstance(function.get("arguments", ""), str | dict):
            raise field_error(f"{place}[{index}].function.arguments", "expected JSON text.")


def number_in_range(
    b: RequestBody, name: str, low: float, high: float, default: float, above: bool = False
) -> float:
    """Return a field that must be in [low, high], or in (low, high] with `above`."""
    value: float | None = getattr(b, name)
    if value is None:
        return default
    is_above_low = value > low if above else value >= low
    if is_above_low and value <= high:
        return value
    least = "more than" if above else "at least"
    raise field_error(name, f"expected {least} {low:g} and at most {high:g}, got {value:g}.")


def read_sampling(
    b: RequestBody, *, limit: int | None, stop: str | Sequence[str] | None, names: tuple[str, str]
) -> Sampling:
    """Read and check the sampling values. `names`: the dialect's names of the token limit and of the stop strings."""
    limit_name, stop_name = names
    if limit is not None and limit < 1:
        raise field_error(limit_name, f"expected at least 1, got {limit}.")
    if b.seed is not None and not -(2**63) <= b.seed < 2**63:
        raise field_error("seed", "expected a 64-bit integer.")
    temperature = number_in_range(b, "temperature", 0, 2, 1.0)
    return Sampling(
        temperature=temperature if temperature >= MIN_TEMPERATURE else 0.0,
        top_p=number_in_range(b, "top_p", 0, 1, 1.0, above=True),
        top_k=_read_top_k(b),
        min_p=number_in_range(b, "min_p", 0, 1, 0.0),
        presence_penalty=number_in_range(b, "presence_penalty", -2, 2, 0.0),
        frequency_penalty=number_in_range(b, "frequency_penalty", -2, 2, 0.0),
        logit_bias=_read_logit_bias(b.logit_bias),
        seed=b.seed,
        max_tokens=min(limit or 0, INT32_MAX),
        min_tokens=_read_min_tokens(b, limit, limit_name),
        stop=read_stops(stop, stop_name),
    )


def _read_min_tokens(b: RequestBody, limit: int | None, limit_name: str) -> int:
    least = b.min_tokens or 0
    if not 0 <= least <= (limit or INT32_MAX):
        most = f"{limit_name} ({limit})" if limit else INT32_MAX
        raise field_error("min_tokens", f"expected 0 to {most}, got {least}.")
    return least


def _read_top_k(b: RequestBody) -> int:
    """Return how many of the likeliest tokens may be sampled; 0: all."""
    top_k = b.top_k or 0
    if not -1 <= top_k <= INT32_MAX:
        raise field_error("top_k", "expected -1 or 0 (all), or a positive number.")
    return max(top_k, 0)


def _read_logit_bias(value_by_token: Mapping[str, float] | None) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (value_by_token or {}).items():
        if not _is_token_id(key):
            raise field_error("logit_bias", f"keys are token ids, got {key[:40]!r}.")
        if not -100 <= value <= 100:
            raise field_error(
                "logit_bias", f"values are -100 to 100, got {value:g} for token {key}."
            )
        bias[int(key)] = value
    return bias


def _is_token_id(key: str) -> bool:
    is_number = key.isascii() and key.isdigit() and len(key) <= 10
    return is_number and int(key) <= INT32_MAX


def read_stops(value: str | Sequence[str] | None, name: str = "stop") -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise field_error(name, f"at most {MAX_STOP_STRINGS} strings, got {len(stops)}.")
    if not all(stops):
        raise field_error(name, "expected strings that are not empty.")
    return stops
