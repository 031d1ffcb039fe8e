"""Formats that a request forces beyond OpenAI's fields: as vLLM, SGLang, llama.cpp and Outlines send them.

`fields` is the JSON of each top-level key of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from openclaw_rl.errors import RequestError, json_type_name
from openclaw_rl.serve.chat_request import ResponseConstraint, field_error
from openclaw_rl.serve.dialects.openai_chat_options import read_field
from openclaw_rl.serve.dialects.prompt_tools import ToolChoice, reply_constraint

# Strings of a `choice` format.
MAX_CHOICE_STRINGS = 1000
# Characters of a regex or grammar.
MAX_FORMAT_CHARS = 64 * 1024
_ANY_JSON = "json_object"
_FORMATS = ("json", "regex", "choice", "grammar", _ANY_JSON)
_TOP_LEVEL_KINDS: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": _ANY_JSON,
    # SGLang's, the first also llama.cpp's.
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    # llama.cpp's.
    "grammar": "grammar",
}
"""Field of the body -> one of `_FORMATS`."""
FORMAT_KEYS = frozenset(_TOP_LEVEL_KINDS) | {"structured_outputs"}
"""Fields of a body that force a format."""
_Format = tuple[str, str, Any]
"""Place in the request, one of `_FORMATS`, and its value, which asks for a format."""
_schema_decoder = msgspec.json.Decoder()
_ChoiceStrings = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1)
]
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def read_constraint(
    fields: Mapping[str, msgspec.Raw],
    choice: ToolChoice,
    schema: Mapping[str, Any] | None,
    place: str,
    tools: Sequence[Mapping[str, Any]],
) -> ResponseConstraint | None:
    """Return the constraint on the reply, or None. `schema`: of the dialect's own field, `place`.

    Raises `RequestError` if two fields force different forms.
    """
    form = read_format(fields)
    if form is None:
        return reply_constraint(choice, schema, place, tools)
    if choice.forced:
        raise _format_conflict(form, "tool_choice, which requires a call")
    if schema is not None:
        raise _format_conflict(form, place)
    return replace(form, tool_names=tuple(tool["function"]["name"] for tool in tools))


def _format_conflict(form: ResponseConstraint, other: str) -> RequestError:
    return field_error(form.param, f"conflicts with {other}. Send one of them.")


def read_format(fields: Mapping[str, msgspec.Raw]) -> ResponseConstraint | None:
    """Return the format that one of `FORMAT_KEYS` forces, if any. Raises `RequestError` for more than one."""
    if not fields:
        return None
    formats = _top_level_formats(fields) + _structured_outputs(fields)
    if not formats:
        return None
    if len(formats) > 1:
        places = sorted(place for place, _, _ in formats)
        raise field_error(
            places[0], f"a reply has one format, got {', '.join(places)}. Send one of them."
        )
    place, kind, value = formats[0]
    if kind == _ANY_JSON:
        if value is not True:
            raise field_error(place, f"expected true or false, got {json_type_name(value)}.")
        return ResponseConstraint(schema={}, request_field=place)
    if kind == "json":
        return ResponseConstraint(schema=_json_schema(value, place), request_field=place)
    return ResponseConstraint(rule=_LARK_RULES[kind](value, place), request_field=place)


def _asks_for_nothing(value: Any) -> bool:
    """Whether a field is as if it were not there. Clients that send each of their fields fill unused ones so."""
    return value is None or value is False or value == ""


def _top_level_formats(fields: Mapping[str, msgspec.Raw]) -> list[_Format]:
    formats = []
    for place, kind in _TOP_LEVEL_KINDS.items():
        value = read_field(fields, place)
        if not _asks_for_nothing(value):
            formats.append((place, kind, value))
    return formats


def _structured_outputs(fields: Mapping[str, msgspec.Raw]) -> list[_Format]:
    outputs = read_field(fields, "structured_outputs")
    if _asks_for_nothing(outputs):
        return []
    if not isinstance(outputs, dict):
        raise field_error(
            "structured_outputs", f"expected an object, got {json_type_name(outputs)}."
        )
    formats = []
    for kind, value in outputs.items():
        if _asks_for_nothing(value):
            continue
        if kind in _FORMATS:
            formats.append((f"structured_outputs.{kind}", kind, value))
        elif value not in ([], {}):
            raise field_error(
                "structured_outputs", f"expected one of {', '.join(_FORMATS)}, got {kind[:40]!r}."
            )
    return formats


def _json_schema(value: Any, place: str) -> Mapping[str, Any]:
    schema = value
    if isinstance(value, str):
        try:
            schema = _schema_decoder.decode(value)
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
