"""Write the grammar of a constrained reply for the engine: llguidance's Lark dialect, with `%json` for schemas.

The text that the template writes around a call is literal; special tokens in it are matched as tokens. The grammar
does not contain the end-of-turn token: the engine allows it where a sentence of the grammar may end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from openclaw_rl.errors import RequestError
from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.families import CallForm
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import ResponseConstraint, field_error

MAX_GRAMMAR_BYTES = (
    128 * 1024
)  # maximum size of a grammar; llguidance may fail during a reply with larger ones
# Whitespace that well-trained models write in JSON, indented or not. If more is allowed, a small model fills its reply.
_JSON_WHITESPACE = {"whitespace_pattern": r"( |\n[ ]{0,16})?"}
_COMPOSING_KEYWORDS = frozenset(
    {"anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "unevaluatedProperties"}
)
_NAMED_SCHEMAS = frozenset({"properties", "$defs", "definitions"})
_LITERAL_KEYWORDS = frozenset({"enum", "const", "default", "examples"})


def grammar_error(reason: str, forced: ResponseConstraint) -> RequestError:
    """Return the client's error for a constraint that cannot be enforced. `reason`: the reason."""
    return field_error(
        forced.param,
        f"{reason}. Simplify the schema, or leave it out and ask for the format in the prompt.",
        code="invalid_grammar",
    )


def build_grammar(
    forced: ResponseConstraint, tools: ToolList, renderer: Renderer, *, thinking: bool
) -> str:
    """Return the grammar of the replies that satisfy `forced`. `thinking`: the prompt opens reasoning, which is first.

    Raises `RequestError` for an unknown tool, an invalid schema, or a template whose calls cannot be constrained.
    """
    added = renderer.tokenizer.backend.get_added_tokens_decoder()
    known = {token.content: i for i, token in added.items() if token.content}
    rules = [_call_rule(name, forced, tools, renderer, known) for name in forced.tool_names]
    ways = [f"call{n}: {rule}" for n, rule in enumerate(rules)]
    heads = [f"call{n}" for n in range(len(ways))]
    if forced.schema is not None or forced.rule:
        heads.append("answer")
        ways.append("answer: " + (forced.rule or _json_rule(forced.schema, forced)))
    if thinking:
        ways.append(_thinking_rule(renderer.family.think_tags[1], known))
    start = ("thinking " if thinking else "") + "reply"
    text = "\n".join([f"start: {start}", "reply: " + " | ".join(heads), *ways, ""])
    if len(text) > MAX_GRAMMAR_BYTES:
        raise grammar_error(
            f"its grammar has {len(text)} bytes, at most {MAX_GRAMMAR_BYTES} are allowed", forced
        )
    return text


def _call_rule(
    name: str,
    forced: ResponseConstraint,
    tools: ToolList,
    renderer: Renderer,
    known: Mapping[str, int],
) -> str:
    tool = next((t["function"] for t in tools if t["function"]["name"] == name), None)
    if tool is None:
        there = sorted(t["function"]["name"] for t in tools)
        raise field_error(forced.param, f"there is no tool {name[:80]!r} in tools {there}.")
    form = renderer.call_form(name)
    if form is None:
        instead = (
            "Send tool_choice auto."
            if forced.schema is None and not forced.rule
            else "Send either tools or a format, not both."
        )
        raise field_error(
            forced.param,
            "the tool call format of this model's chat template is unknown, so no call can be forced. "
            + instead,
        )
    if not _is_read_back(name, form, renderer):
        raise field_error(
            forced.param,
            f"a call of the tool {name[:80]!r} cannot be parsed back, because of characters in its "
            "name (one of the model's special tokens, for example). Rename the tool.",
        )
    parts = [
        *_literal_terminals(form.before, known),
        _json_rule(_arguments_schema(tool, forced), forced),
        *_literal_terminals(form.after, known),
    ]
    return " ".join(parts)


# An agent sends the same tools in every turn.
@lru_cache(4096)
def _is_read_back(name: str, form: CallForm, renderer: Renderer) -> bool:
    reply = renderer.new_reply_decoder(
        thinking=False, tools=({"type": "function", "function": {"name": name}},)
    )
    reply.push(
        [
            *renderer.tokenizer.encode(form.before + "{}" + form.after).tolist(),
            renderer.stop_token_ids[0],
        ]
    )
    reply.finish()
    return [call.name for call in reply.parser.calls] == [name] and not reply.parser.content


def _arguments_schema(tool: Mapping[str, Any], forced: ResponseConstraint) -> Mapping[str, Any]:
    """Return the tool's parameter schema with type object, even if the schema has no type or allows other types."""
    schema = tool.get("parameters") or {"properties": {}}
    kind = schema.get("type", "object") if isinstance(schema, Mapping) else None
    if kind == "object" or (isinstance(kind, list) and "object" in kind):
        return {**schema, "type": "object"}
    raise field_error(
        forced.param,
        f"the parameters of the tool {tool['name'][:80]!r} must be a JSON schema of type object, "
        f"got {json.dumps(schema)[:80]}. A call's arguments are an object.",
    )


def _literal_terminals(text: str, known: Mapping[str, int]) -> Iterator[str]:
    """Yield `text` as terminals: strings, and special tokens by their id."""
    pattern = "|".join(re.escape(t) for t in sorted(known, key=len, reverse=True))
    for piece in re.split(f"({pattern})", text) if known else [text]:
        if piece in known:
            yield f"<[{known[piece]}]>"
        elif piece:
            yield json.dumps(piece, ensure_ascii=False)


def _json_rule(schema: Any, forced: ResponseConstraint) -> str:
    if not isinstance(schema, Mapping):
        raise field_error(forced.param, "expected a JSON schema that is an object.")
    # Closed, each part would reject the properties of the others.
    if '"allOf"' not in json.dumps(schema):
        schema = close_objects(schema)
    return "%json " + json.dumps((schema or {"type": "object"}) | {"x-guidance": _JSON_WHITESPACE})


def close_objects(schema: Any) -> Any:
    """Add `additionalProperties: false` to objects that list their properties, unless the schema sets it.

    Every value of the result is valid under the original schema. A model that may invent properties seldom stops.
    """
    if isinstance(schema, list):
        return [close_objects(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_composed = "properties" in schema and not _COMPOSING_KEYWORDS.isdisjoint(schema)
    if is_composed:
        return schema
    closed = {key: _close_keyword(key, value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), Mapping):
        closed.setdefault("additionalProperties", False)
    return closed


def _close_keyword(key: str, value: Any) -> Any:
    if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
        return {name: close_objects(item) for name, item in value.items()}
    return value if key in _LITERAL_KEYWORDS else close_objects(value)


def _thinking_rule(tag: str, known: Mapping[str, int]) -> str:
    """Return the rule for any text up to the first tag that ends reasoning, and the line ends after it."""
    gap = r'("\n" | "\n\n")?'
    if tag not in known:
        return f"thinking: thought {gap}\nthought[suffix={json.dumps(tag)}]: /(.|\\n)*/"
    # The tag may not appear as text either: some tokens match it both ways.
    closing_tag = re.escape(tag).replace("/", r"\/")
    return f"thinking: THOUGHT <[{known[tag]}]> {gap}\nTHOUGHT: /(.|\\n)*/ & ~/(.|\\n)*{closing_tag}(.|\\n)*/"
