"""Templates that transformers refuses and other servers render: own lists, generators, variables of Firefunction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_rl.errors import TemplateRefusal
from openclaw_rl.render.chat_template import ChatTemplate, serialize_tools

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def render(
    template: str, messages: list[dict[str, Any]] | None = None, *, tools: bool = False
) -> str:
    shown = [{"role": "user", "content": "x"}] if messages is None else messages
    given = serialize_tools(TOOLS if tools else [])
    return ChatTemplate({"default": template}, {}).render(shown, given, generation=True)


def test_a_template_may_change_a_list_of_its_own() -> None:
    template = (
        "{%- set ids = namespace(all=[]) -%}"
        "{%- for m in messages -%}{%- set _ = ids.all.append(m.content) -%}{%- endfor -%}"
        "{{ ids.all.pop(0) }} {{ ids.all | length }}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert render(template, messages) == "a 1"


@pytest.mark.parametrize(
    "change",
    [
        "messages.append(1)",
        "messages[0].parts.append(1)",
        "messages[0].parts[0].pop()",
        "messages[0].parts.extend([1])",
        "tools.append(1)",
        "tools[0].function.parameters.update({'a': 1})",
    ],
)
def test_a_template_may_not_change_the_conversation(change: str) -> None:
    messages = [{"role": "user", "content": "x", "parts": [[1]]}]
    with pytest.raises(TemplateRefusal):
        render(f"{{{{ {change} }}}}", messages, tools=True)
    assert messages == [{"role": "user", "content": "x", "parts": [[1]]}]


@pytest.mark.parametrize("change", ["own.clear()", "own.insert(0, 1)", "own.sort()"])
def test_other_changes_of_a_list_are_refused(change: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(f"{{% set own = [1] %}}{{{{ {change} }}}}")


def test_a_generator_is_written_as_a_list() -> None:
    template = "{{ tools | map(attribute='function') | tojson }}"
    assert json.loads(render(template, tools=True)) == [TOOLS[0]["function"]]


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(TemplateRefusal):
        render("{{ namespace() | tojson }}")


def test_a_template_that_needs_its_tools_as_text_gets_them() -> None:
    template = "{{ 'Tools: ' + functions + ' at ' + datetime }}"
    text = render(template, tools=True)
    tools, at, moment = text.removeprefix("Tools: ").rpartition(" at ")
    assert json.loads(tools) == TOOLS
    assert at
    assert moment
    assert render(template).startswith("Tools:  at ")


def test_a_template_that_works_without_them_does_not_get_them() -> None:
    """The prompt stays as transformers renders it."""
    assert render("{{ 'given' if functions is defined else 'absent' }}", tools=True) == "absent"
