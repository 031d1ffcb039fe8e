"""Types of values that a model writes as plain text: from the schema of the tool's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.lenient_json import read_values

_MAX_DEPTH = 8
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
# Templates write earlier calls with Python literals.
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}
_NOT_JSON = object()


class ToolSchemas:
    """The schemas of the parameters of declared functions."""

    def __init__(self, tools: ToolList) -> None:
        functions = [t.get("function") or {} for t in tools]
        self._schemas = {f.get("name"): f.get("parameters") or {} for f in functions}

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """Return the names of the types that a parameter may have; empty if the schema does not say."""
        schema = self._schemas.get(function)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping):
            return frozenset()
        return allowed_types(properties.get(parameter), schema)


def convert_value(text: str, types: frozenset[str]) -> Any:
    """Convert a text to one of the allowed types; return it unchanged if it is a string or of another type.

    Without `types` only objects and arrays are converted.
    """
    value = _read_value(text.strip() if "string" not in types else text)
    if value is _NOT_JSON:
        return text
    names = types or frozenset({"object", "array"})
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole and "integer" in names and "number" not in names:
        value = int(value)
    fits = any(type(value) in _PYTHON_TYPES.get(name, ()) for name in names)
    return value if fits else text


def _read_value(text: str) -> Any:
    if text in _PYTHON_LITERALS:
        return _PYTHON_LITERALS[text]
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        values = read_values(text) if text[:1] in ("{", "[") else None
        return values[0] if values is not None and len(values) == 1 else _NOT_JSON


def allowed_types(schema: Any, root: Any = None, depth: int = 0) -> frozenset[str]:
    """Return the names of the types that a schema allows, also behind `$ref` into `root`; empty if it says none."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    stated = schema.get("type")
    names = stated if isinstance(stated, list) else [stated]
    types = {name for name in names if isinstance(name, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        for part in _list_of(schema, key):
            types |= allowed_types(part, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        types |= allowed_types(_find_reference(root, schema["$ref"]), root, depth + 1)
    if not types:
        values = [schema["const"]] if "const" in schema else _list_of(schema, "enum")
        types.update(*map(_names_of_type, values))
    return frozenset(types)


def _find_reference(root: Any, reference: str) -> Any:
    """Return what a reference like `#/$defs/Point` names in the schema of the parameters; None if there is nothing."""
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if reference.startswith("#/") else None


def _list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _names_of_type(value: Any) -> set[str]:
    """Return the names that a JSON schema has for the type of a value."""
    if isinstance(value, str):
        return {"string"}
    return {name for name, kinds in _PYTHON_TYPES.items() if type(value) in kinds}
