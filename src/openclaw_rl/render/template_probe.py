"""Detect what a chat template does to earlier turns, by rendering small conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.families import ModelFamily
from openclaw_rl.types import Message

RenderFunction = Callable[[Sequence[Message], ToolList, bool], str | None]
"""(messages, tools, add generation prompt) -> the rendered text; None if the template rejects them."""
CUT_MARKER = "Xq7openclaw0cut0here7qX"
_THOUGHT_MARKER = "Xq7openclaw0thought7qX"
_TOOL_NAMES = ("fXq7", "gXq7")
UNREAD_CALLS_NOTE = (
    "calls of this chat template are not parsed: they reach the client as text, and turns with tools are not "
    "trained on"
)
"""Shown at the start, by `doctor` and by `status`."""
UNREAD_CALLS = "writes tool calls in a form that is not read: they stay text"

SYSTEM_MESSAGE: Message = {"role": "system", "content": "s1"}
FIRST_REQUEST: Message = {"role": "user", "content": "u1"}
PLAIN_REPLY: Message = {"role": "assistant", "content": "a1"}
SECOND_REQUEST: Message = {"role": "user", "content": "u2\n"}
REPLY_WITH_REASONING: Message = {
    "role": "assistant",
    "content": "a1",
    "reasoning_content": _THOUGHT_MARKER,
}


def _make_call(number: int) -> dict[str, Any]:
    function = {"name": _TOOL_NAMES[number], "arguments": {"k": "v"}}
    return {"id": f"callabc1{number}", "type": "function", "function": function}


def _make_tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"k": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": "e", "parameters": parameters},
    }


PROBE_TOOLS = [_make_tool(name) for name in _TOOL_NAMES]
REPLY_WITH_ONE_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [_make_call(0)]}
REPLY_WITH_TWO_CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [_make_call(0), _make_call(1)],
}
FIRST_RESULT: Message = {
    "role": "tool",
    "content": "r1",
    "tool_call_id": "callabc10",
    "name": _TOOL_NAMES[0],
}
SECOND_RESULT: Message = {
    "role": "tool",
    "content": "r2",
    "tool_call_id": "callabc11",
    "name": _TOOL_NAMES[1],
}


def sample_conversations() -> list[tuple[list[Message], ToolList]]:
    """Return conversations for testing whether a rendered conversation can be built turn by turn."""
    both: Message = {**REPLY_WITH_TWO_CALLS, "content": "c"}
    start = [SYSTEM_MESSAGE, FIRST_REQUEST]
    again = [PLAIN_REPLY, SECOND_REQUEST]
    return [
        ([FIRST_REQUEST, *again], ()),
        ([*start, *again, *again], ()),
        ([*start, *again], PROBE_TOOLS[:1]),
        ([*start, REPLY_WITH_ONE_CALL, FIRST_RESULT], PROBE_TOOLS),
        ([*start, REPLY_WITH_ONE_CALL, FIRST_RESULT, *again], PROBE_TOOLS[:1]),
        ([FIRST_REQUEST, *again, both, FIRST_RESULT, SECOND_RESULT], PROBE_TOOLS[:1]),
    ]


class TemplateBehaviour(NamedTuple):
    """Changes that a template makes to `reasoning` and `calls` of earlier replies, as text; empty: none."""

    reasoning: str
    calls: str

    @property
    def description(self) -> str:
        return ", ".join(w for w in self if w)


def probe_behaviour(text: RenderFunction, family: ModelFamily) -> TemplateBehaviour:
    """Render test conversations and return what the template does to earlier replies."""
    return TemplateBehaviour(_probe_reasoning(text, family), _probe_calls(text, family))


def _probe_reasoning(text: RenderFunction, family: ModelFamily) -> str:
    def render(messages: list[Message], tools: ToolList, generation: bool) -> str:
        return text(messages, tools, generation) or ""

    earlier = render([FIRST_REQUEST, REPLY_WITH_REASONING, SECOND_REQUEST], (), True)
    if _THOUGHT_MARKER in earlier:
        return ""
    thinking_call: Message = {**REPLY_WITH_ONE_CALL, "reasoning_content": _THOUGHT_MARKER}
    loop = render([FIRST_REQUEST, thinking_call, FIRST_RESULT], PROBE_TOOLS, True)
    if _THOUGHT_MARKER in loop:
        return "drops the reasoning of earlier turns (keeps it inside a tool loop)"
    last = render([FIRST_REQUEST, REPLY_WITH_REASONING], (), False)
    opens_thinking = family.opens_thinking(render([FIRST_REQUEST], (), True))
    if opens_thinking or _THOUGHT_MARKER in last:
        return "drops the reasoning of earlier turns"
    return ""


def reads_calls(text: RenderFunction, family: ModelFamily) -> bool:
    """Whether the family's parser reads the calls that the template writes, if it writes any."""
    return _probe_calls(text, family) != UNREAD_CALLS


def _probe_calls(text: RenderFunction, family: ModelFamily) -> str:
    """Compare the calls that the template writes to those that the family's parser reads back."""
    whole = text([FIRST_REQUEST, REPLY_WITH_ONE_CALL, FIRST_RESULT], PROBE_TOOLS, False)
    before = text([FIRST_REQUEST], PROBE_TOOLS, False)
    plain = text([FIRST_REQUEST, PLAIN_REPLY, SECOND_REQUEST], PROBE_TOOLS, False)
    if whole is None or before is None or plain is None:
        # This template does not support tools.
        return ""
    read = _count_calls_read(text, family, REPLY_WITH_ONE_CALL, [FIRST_RESULT])
    if read < 1:
        has_name = _TOOL_NAMES[0] in _after_common_prefix(whole, before)
        return UNREAD_CALLS if has_name else "drops tool calls"
    both = _count_calls_read(text, family, REPLY_WITH_TWO_CALLS, [FIRST_RESULT, SECOND_RESULT])
    return "keeps only one of several tool calls" if both == 1 else ""


def _after_common_prefix(whole: str, before: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(whole, before, strict=False))
    return whole[len(list(same)) :]


def _count_calls_read(
    text: RenderFunction, family: ModelFamily, reply: Message, results: Sequence[Message]
) -> int:
    """Return how many of the reply's calls the parser reads back from the rendered text; -1 if it is rejected."""
    whole = text([FIRST_REQUEST, reply, *results], PROBE_TOOLS, False)
    opening = text([FIRST_REQUEST], PROBE_TOOLS, True)
    if whole is None or opening is None:
        return -1
    # The generation prompt opens reasoning, which earlier replies do not have.
    if not whole.startswith(opening):
        opening = text([FIRST_REQUEST], PROBE_TOOLS, False) or ""
    sample = whole.removeprefix(opening)
    if not whole.startswith(opening):
        sample = _after_common_prefix(whole, opening)
    parser = family.new_parser(thinking=False, tools=PROBE_TOOLS)
    parser.push(sample)
    parser.finish()
    sent_names = {call["function"]["name"] for call in reply["tool_calls"]}
    return sum(call.name in sent_names for call in parser.calls)


def reply_anchors(text: RenderFunction, split: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Return the texts that may precede a reply's first character, from the last special token or earlier."""
    anchors: dict[str, None] = {}
    shapes: list[tuple[list[Message], ToolList]] = [
        ([FIRST_REQUEST], ()),
        ([FIRST_REQUEST, REPLY_WITH_ONE_CALL, FIRST_RESULT], PROBE_TOOLS),
    ]
    for before, tools in shapes:
        closed = text(before, tools, False) or ""
        for opened in _texts_before_reply(text, before, tools):
            generation_prompt = opened.removeprefix(closed) if opened.startswith(closed) else ""
            if not closed or not generation_prompt:
                generation_prompt = _last_special(opened, split)
            if generation_prompt.strip():
                anchors[generation_prompt] = None
    return tuple(anchors)


def _texts_before_reply(
    text: RenderFunction, before: list[Message], tools: ToolList
) -> Iterator[str]:
    """Yield the text before a reply: that of a generation prompt, and that before a reply in a history."""
    opened = text(before, tools, True)
    if opened:
        yield opened
    reply = {"role": "assistant", "content": CUT_MARKER}
    whole = text([*before, reply, SECOND_REQUEST], tools, True) or ""
    start, marker, _ = whole.partition(CUT_MARKER)
    if marker:
        yield start


def _last_special(end: str, split: Callable[[str], list[str]]) -> str:
    # Text and special tokens alternate, text is first and last.
    pieces = split(end)
    return "".join(pieces[-2:]) if len(pieces) >= 3 else ""
