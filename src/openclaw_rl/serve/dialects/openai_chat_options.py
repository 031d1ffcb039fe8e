"""Options of Chat Completions beyond OpenAI's: fields that are refused or ignored, and forced formats as vLLM has them.

`fields` is the JSON of each top-level key of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any

import msgspec

from openclaw_rl.errors import RequestError, json_type_name
from openclaw_rl.serve.chat_request import ResponseConstraint, field_error
from openclaw_rl.serve.dialects.validation import decode_json, printable_header

# Strings of a `choice` format.
MAX_CHOICE_STRINGS = 1000
# Characters of a regex or grammar.
MAX_FORMAT_CHARS = 64 * 1024
# top-level keys; each unknown one is described in a header.
MAX_BODY_KEYS = 1000
_EMPTY: tuple[Any, ...] = (None, False, [], {}, "")
_UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": (_EMPTY, "the model writes text only; leave it out."),
    "bad_words": (_EMPTY, "not supported; send logit_bias for single tokens."),
    "best_of": ((None, 1), "not supported; send n, and choose among the replies."),
    "ignore_eos": (_EMPTY, "not supported; send min_tokens for a reply of a minimum length."),
    "length_penalty": ((None, 1), "beam search is not supported; leave it out."),
    "logits_processors": (_EMPTY, "code of a request does not run here; send logit_bias."),
    "modalities": ((None, [], ["text"]), "the model writes text only; expected ['text']."),
    "prediction": (_EMPTY, "predicted outputs are not supported; leave it out."),
    "prompt_embeds": (_EMPTY, "not supported; send messages."),
    "prompt_logprobs": ((None,), "not supported; send logprobs for those of the reply."),
    "repetition_penalty": (
        (None, 1),
        "not supported; send frequency_penalty or presence_penalty, or the value 1.",
    ),
    "use_beam_search": (_EMPTY, "not supported; leave it out."),
    "web_search_options": (
        (None,),
        "web search is not supported; send a tool, and run it in the client.",
    ),
}
"""Field -> (values without effect, what to do). Any other value would change the reply, so it is refused."""
_FORMATS = ("json", "regex", "choice", "grammar")
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_decoder = msgspec.json.Decoder()
_ChoiceStrings = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1)
]
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def read_keys(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the JSON of each top-level key of the body. Raises `RequestError` for too many keys."""
    fields = decode_json(_raw_decoder, body)
    if len(fields) > MAX_BODY_KEYS:
        raise RequestError(f"the body has {len(fields)} fields; expected at most {MAX_BODY_KEYS}.")
    return fields


def read_ignored(fields: Mapping[str, msgspec.Raw], known: AbstractSet[str]) -> list[str]:
    """Return the keys outside `known`, which have no effect. Raises `RequestError` for one that needs support."""
    ignored = []
    for key in fields.keys() - known:
        if bytes(fields[key]) == b"null":
            continue
        if key not in _UNSUPPORTED:
            ignored.append(printable_header(key))
            continue
        values_without_effect, advice = _UNSUPPORTED[key]
        if _value(fields, key) not in values_without_effect:
            raise field_error(key, advice)
    return sorted(ignored)


def _value(fields: Mapping[str, msgspec.Raw], key: str) -> Any:
    """Return the value of a key; None if the body does not have it."""
    return decode_json(_any_decoder, bytes(fields[key]), key) if key in fields else None


def read_format(fields: Mapping[str, msgspec.Raw]) -> ResponseConstraint | None:
    """Return the format of `structured_outputs` or of a `guided_*` field. Raises `RequestError` for more than one."""
    if not fields:
        return None
    formats = _guided_formats(fields) + _structured_outputs(fields)
    if not formats:
        return None
    if len(formats) > 1:
        places = sorted(place for place, _, _ in formats)
        raise field_error(
            places[0], f"a reply has one format, got {', '.join(places)}. Send one of them."
        )
    place, kind, value = formats[0]
    if kind == "json":
        return ResponseConstraint(schema=_json_schema(value, place), request_field=place)
    return ResponseConstraint(rule=_LARK_RULES[kind](value, place), request_field=place)


_Format = tuple[str, str, Any]
"""Place in the request, one of `_FORMATS`, and its value, which is not null."""


def _guided_formats(fields: Mapping[str, msgspec.Raw]) -> list[_Format]:
    formats = []
    for kind in _FORMATS:
        place = f"guided_{kind}"
        value = _value(fields, place)
        if value is not None:
            formats.append((place, kind, value))
    return formats


def _structured_outputs(fields: Mapping[str, msgspec.Raw]) -> list[_Format]:
    outputs = _value(fields, "structured_outputs")
    if outputs is None:
        return []
    if not isinstance(outputs, dict):
        raise field_error(
            "structured_outputs", f"expected an object, got {json_type_name(outputs)}."
        )
    formats = []
    for kind, value in outputs.items():
        if kind in _FORMATS and value is not None:
            formats.append((f"structured_outputs.{kind}", kind, value))
        elif value not in _EMPTY:
            raise field_error(
                "structured_outputs", f"expected one of {', '.join(_FORMATS)}, got {kind[:40]!r}."
            )
    return formats


def _json_schema(value: Any, place: str) -> Mapping[str, Any]:
    schema = value
    if isinstance(value, str):
        try:
            schema = _any_decoder.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise field_error(
                place, f"expected a JSON schema, got text that is not valid JSON: {error}."
            ) from None
    if not isinstance(schema, dict):
        raise field_error(
            place, f"expected a JSON schema that is an object, got {json_type_name(schema)}."
        )
    return schema


def _choice_rule(value: Any, place: str) -> str:
    """Return the body of a Lark rule for one of several strings."""
    try:
        strings = msgspec.convert(value, _ChoiceStrings)
    except msgspec.ValidationError:
        raise field_error(place, "expected a list of strings that are not empty.") from None
    if len(strings) > MAX_CHOICE_STRINGS:
        raise field_error(
            place, f"expected at most {MAX_CHOICE_STRINGS} strings, got {len(strings)}."
        )
    return " | ".join(json.dumps(string, ensure_ascii=False) for string in strings)


def _regex_rule(value: Any, place: str) -> str:
    """Return the body of a Lark rule for a regular expression."""
    pattern = _check_format_text(value, place)
    escaped = _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], pattern)
    return "/" + escaped.replace("\n", r"\n") + "/"


def _grammar_rule(value: Any, place: str) -> str:
    """Return the body of a Lark rule for a grammar in Lark's or GBNF's notation."""
    grammar = _check_format_text(value, place)
    is_gbnf = "::=" in grammar
    return "%lark {\n" + (_lark_of_gbnf(grammar, place) if is_gbnf else grammar) + "\n}"


def _check_format_text(value: Any, place: str) -> str:
    """Return the text of a regular expression or grammar. Raises `RequestError` for other values."""
    if value == "":
        raise field_error(place, "expected text, got none.")
    if not isinstance(value, str):
        raise field_error(place, f"expected text, got {json_type_name(value)}.")
    if len(value) > MAX_FORMAT_CHARS:
        raise field_error(
            place, f"expected at most {MAX_FORMAT_CHARS} characters, got {len(value)}."
        )
    return value


_LARK_RULES: Mapping[str, Callable[[Any, str], str]] = {
    "choice": _choice_rule,
    "regex": _regex_rule,
    "grammar": _grammar_rule,
}
"""Format -> (value, place) -> body of its Lark rule."""


def _lark_of_gbnf(value: str, place: str) -> str:
    # Here, because it takes 50 ms and few requests need it.
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(value))
    except Exception as error:  # noqa: BLE001 - the converter raises plain exceptions for what it cannot read
        raise field_error(place, f"expected a Lark or GBNF grammar: {str(error)[:300]}.") from None
