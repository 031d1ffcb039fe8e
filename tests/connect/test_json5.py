"""Edits of JSON5: the value is there, and every other character is where it was."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.connect.json5 import Json5Error, parse, set_value

OLD = """\
// my own settings
{
  agents: { defaults: { model: { primary: 'anthropic/claude' } } }, // keep this
  /* providers */
  "models": {
    providers: {
      other: { baseUrl: "http://x/v1", models: [{ id: "a", }], }, // mine, {not} yours
    },
  },
  port: 0x10, half: .5, minus: -1, text: "a // no comment", more: 'it\\'s \\u0041\\
b',
}
"""


def test_reads_json5() -> None:
    value = parse(OLD).value
    assert value["agents"]["defaults"]["model"]["primary"] == "anthropic/claude"
    assert value["models"]["providers"]["other"]["models"] == [{"id": "a"}]
    assert (value["port"], value["half"], value["minus"]) == (16, 0.5, -1)
    assert (value["text"], value["more"]) == ("a // no comment", "it's Ab")


def test_adds_and_keeps_all_else() -> None:
    new = set_value(OLD, ["models", "providers", "mine", "baseUrl"], "http://y/v1")
    assert parse(new).value["models"]["providers"]["mine"] == {"baseUrl": "http://y/v1"}
    assert "// mine, {not} yours\n" in new
    kept = [line for line in OLD.splitlines() if line not in new.splitlines()]
    assert kept == []
    assert set_value(new, ["models", "providers", "mine", "baseUrl"], "http://y/v1") == new


def test_replaces_a_value_alone() -> None:
    new = set_value(OLD, ["agents", "defaults", "model", "primary"], "b/c")
    assert new == OLD.replace("'anthropic/claude'", '"b/c"')


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{ }",
        "{\n}",
        "{a:1}",
        "{a:1,}",
        "{a:1 /* , */}",
        "{a:1, // , x\n}",
        '{"a":1}\n',
        "{\n  a: 1\n}",
        "{a:{b:1}}",
    ],
)
def test_adds_to_whatever_shape(text: str) -> None:
    before = parse(text).value
    new = set_value(text, ["z", "y"], [1, {"x": None}])
    assert parse(new).value == before | {"z": {"y": [1, {"x": None}]}}
    assert re.findall(r"//.*|/\*.*?\*/", new) == re.findall(r"//.*|/\*.*?\*/", text)
    assert set_value(new, ["z", "y"], [1, {"x": None}]) == new


SHAPES = ["{\n}", "{\n  a: 1\n}", "{a:1, // , x\n}", "{\n  a: { b: 'c\\\nd', }, /* e\n */\n}\n", "// f\n{a:1}\n", OLD]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("text", SHAPES)
def test_the_files_own_line_ends_stay(text: str, end: str) -> None:
    for path in (["z", "y"], ["a", "q"] if "a: {" in text else ["q"], ["z"]):
        told = set_value(text, path, [1, {"x": "\n"}])
        assert set_value(text.replace("\n", end), path, [1, {"x": "\n"}]) == told.replace("\n", end)
        assert parse(told.replace("\n", end)).value == parse(told).value
    with pytest.raises(Json5Error, match="line 3"):
        parse(f"{{{end}a: 1,{end}b c{end}}}")


def test_where_ends_are_mixed_none_is_changed() -> None:
    text = "{\r\n  a: 1, // x\n  b: 2 // y\r\n}\n"
    assert (
        set_value(text, ["z"], {"k": 1}) == '{\r\n  a: 1, // x\n  b: 2, // y\r\n  "z": {\r\n    "k": 1\r\n  },\r\n}\n'
    )


@pytest.mark.parametrize("text", ["", "{", "{a:}", "{a 1}", "{a:1 b:2}", "[1", "{a:1}}", "{a: what}", "{'a}"])
def test_what_is_no_json5_is_refused(text: str) -> None:
    with pytest.raises(Json5Error, match="line 1"):
        parse(text)


def test_something_in_the_way_is_refused() -> None:
    with pytest.raises(Json5Error, match=r"models\.providers: expected an object, got 3"):
        set_value("{models: {providers: 3}}", ["models", "providers", "x"], 1)


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)


def nested(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values, max_size=3)


VALUES = st.recursive(LEAVES, nested, max_leaves=8)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@given(OBJECTS, st.lists(st.sampled_from("abxy"), min_size=1, max_size=3), VALUES, st.sampled_from([None, 1, 4]))
def test_it_is_assignment(whole: dict[str, Any], path: list[str], value: Any, indent: int | None) -> None:
    node: Any = whole
    for key in path[:-1]:
        node = node.get(key, {})
        if not isinstance(node, dict):
            return
    new = set_value(json.dumps(whole, indent=indent), path, value)
    expected = json.loads(json.dumps(whole))
    inner = expected
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    assert parse(new).value == expected
    assert set_value(new, path, value) == new


def test_what_is_nested_too_deeply_is_said() -> None:
    with pytest.raises(Json5Error, match="nested too deeply"):
        parse("[" * 3000 + "]" * 3000)
