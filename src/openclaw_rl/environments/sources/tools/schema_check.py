"""Check the arguments of a call against the JSON schema of its tool, within a limit of time.

Tools, MCP servers and tasks bring the schema, and the model chooses the text: for some patterns Python's `re` takes
years. RE2 takes linear time, and checks all patterns that it can express. A schema with any other pattern, such as one
with look-ahead, is checked by a process that is killed after `CHECK_SECONDS`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import re2
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

CHECK_SECONDS = 5.0
# Characters.
_MAX_PROBLEM = 500
_MAX_SHOWN = 80


class SchemaBroken(Exception):
    """Raised if a schema cannot be used: a reference leads nowhere, or a pattern is no regular expression."""


@lru_cache(1024)
def compile_pattern(pattern: str) -> Any:
    """Return a regular expression of RE2. Raises `ValueError`, and prints nothing."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        message = error.args[0]
        raise ValueError(
            f"pattern: {message.decode(errors='replace') if isinstance(message, bytes) else message}"
        ) from None


def find_problem(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """Return why the arguments are against the schema, or None. Blocks for at most about `CHECK_SECONDS`.

    Raises `SchemaBroken`.
    """
    if is_linear(schema):
        return _check(_linear_validator(schema), arguments)
    return _check_in_process(schema, arguments)


def is_linear(schema: Mapping[str, Any]) -> bool:
    """Return whether RE2 can check all patterns of the schema."""
    patterns = set(_find_patterns(schema))
    if patterns and "unevaluatedProperties" in _find_keywords(schema):
        # jsonschema compares these names by `re` itself.
        return False
    return all(map(_is_expressible, patterns))


def _is_expressible(pattern: str) -> bool:
    try:
        compile_pattern(pattern)
    except ValueError:
        return False
    return True


def _find_patterns(schema: Any) -> Iterator[str]:
    """Yield every text in the schema that may be read as a regular expression, wherever it is."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pattern = value.get("pattern")
            if isinstance(pattern, str):
                yield pattern
            by_pattern = value.get("patternProperties")
            if isinstance(by_pattern, Mapping):
                yield from by_pattern
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value


def _find_keywords(schema: Any) -> set[str]:
    names: set[str] = set()
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            names.update(value)
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return names


def _linear_validator(schema: Mapping[str, Any]) -> Validator:
    """Return a check whose patterns are all for RE2. References to other documents are not fetched."""
    plain = validator_for(schema, default=Draft202012Validator)
    keywords = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional_properties,
    }
    kind = extend(plain, keywords)  # type: ignore[no-untyped-call]
    validator: Validator = kind(schema, registry=Registry())
    return validator


def _check_pattern(_: Validator, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and compile_pattern(pattern).search(value) is None:
        yield ValidationError(f"{_shorten(value)} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, by_pattern: Mapping[str, Any], value: Any, _: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for pattern, schema in by_pattern.items():
        for name, member in value.items():
            if compile_pattern(pattern).search(name) is not None:
                yield from validator.descend(member, schema, path=name, schema_path=pattern)


def _check_additional_properties(
    validator: Any, allowed: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    patterns = [compile_pattern(pattern) for pattern in schema.get("patternProperties", {})]
    known = schema.get("properties", {})
    extra = [
        name
        for name in value
        if name not in known and all(pattern.search(name) is None for pattern in patterns)
    ]
    if isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(value[name], allowed, path=name)
    elif not allowed and extra:
        yield ValidationError(f"unexpected: {', '.join(map(_shorten, extra))}")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _check(validator: Validator, arguments: Any) -> str | None:
    try:
        problem = best_match(validator.iter_errors(arguments))
    except RecursionError:
        return "the arguments are nested too deeply"
    except re.error as error:
        raise SchemaBroken(f"no regular expression: {error}") from None
    except (OverflowError, ValueError):
        # Of `multipleOf`.
        return "the arguments have a number that is too large, or none"
    except Unresolvable as error:
        raise SchemaBroken(str(error)) from None
    if problem is None:
        return None
    place = ".".join(str(part) for part in problem.absolute_path)
    return ": ".join(filter(None, ("arguments", place, problem.message)))[:_MAX_PROBLEM]


def _check_in_process(schema: Mapping[str, Any], arguments: Any) -> str | None:
    request = json.dumps({"schema": schema, "arguments": arguments}).encode()
    # -I: nothing of the working folder or the environment is imported.
    command = [sys.executable, "-I", "-c", _PROGRAM, *_import_paths()]
    try:
        ended = subprocess.run(
            command, input=request, capture_output=True, timeout=CHECK_SECONDS, check=False, env={}
        )
    except subprocess.TimeoutExpired:
        return (
            f"the arguments could not be checked within {CHECK_SECONDS:g} s: a pattern of the schema is too slow for "
            "them. Send shorter texts"
        )
    if ended.returncode != 0:
        raise SchemaBroken(ended.stderr.decode(errors="replace").strip()[-_MAX_PROBLEM:])
    answer = json.loads(ended.stdout)
    if "broken" in answer:
        raise SchemaBroken(answer["broken"])
    problem: str | None = answer["problem"]
    return problem


_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from openclaw_rl.environments.sources.tools.schema_check import main
main()
"""


def _import_paths() -> list[str]:
    return [path for path in sys.path if path]


def main() -> None:
    """Check one request of stdin with Python's own patterns, and write the result to stdout."""
    request = json.load(sys.stdin)
    schema = request["schema"]
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        problem = _check(kind(schema, registry=Registry()), request["arguments"])
        answer = {"problem": problem}
    except SchemaBroken as error:
        answer = {"broken": str(error)}
    sys.stdout.write(json.dumps(answer))
