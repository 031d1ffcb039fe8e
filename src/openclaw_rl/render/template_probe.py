"""Detect what a chat template does to earlier turns, by rendering small conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from openclaw_rl.render.families import Family
from openclaw_rl.types import Message

Tools = Sequence[Mapping[str, Any]]
Text = Callable[[Sequence[Message], Tools, bool], str | None]
"""(messages, tools, add generation prompt) -> the template's text; None if the template rejects them."""
CUT = "Xq7openclaw0cut0here7qX"
_THOUGHT = "Xq7openclaw0thought7qX"
_NAMES = ("fXq7", "gXq7")

SYSTEM: Message = {"role": "system", "content": "s1"}
ASK: Message = {"role": "user", "content": "u1"}
ANSWER: Message = {"role": "assistant", "content": "a1"}
MORE: Message = {"role": "user", "content": "u2\n"}
THOUGHT: Message = {"role": "assistant", "content": "a1", "reasoning_content": _THOUGHT}


def _call(number: int) -> dict[str, Any]:
    function = {"name": _NAMES[number], "arguments": {"k": "v"}}
    return {"id": f"callabc1{number}", "type": "function", "function": function}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"k": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "e", "parameters": parameters}}


TOOLS = [_tool(name) for name in _NAMES]
ONE: Message = {"role": "assistant", "content": "", "tool_calls": [_call(0)]}
TWO: Message = {"role": "assistant", "content": "", "tool_calls": [_call(0), _call(1)]}
RESULT: Message = {"role": "tool", "content": "r1", "tool_call_id": "callabc10", "name": _NAMES[0]}
OTHER: Message = {"role": "tool", "content": "r2", "tool_call_id": "callabc11", "name": _NAMES[1]}


def samples() -> list[tuple[list[Message], Tools]]:
    """Return conversations for testing whether a template's text can be built turn by turn."""
    both: Message = {**TWO, "content": "c"}
    return [
        ([ASK, ANSWER, MORE], ()),
        ([SYSTEM, ASK, ANSWER, MORE, ANSWER, MORE], ()),
        ([SYSTEM, ASK, ANSWER, MORE], TOOLS[:1]),
        ([SYSTEM, ASK, ONE, RESULT], TOOLS),
        ([SYSTEM, ASK, ONE, RESULT, ANSWER, MORE], TOOLS[:1]),
        ([ASK, ANSWER, MORE, both, RESULT, OTHER], TOOLS[:1]),
    ]


class Past(NamedTuple):
    """Changes that a template makes to `reasoning` and `calls` of earlier replies, as text; empty: none."""

    reasoning: str
    calls: str

    @property
    def words(self) -> str:
        return ", ".join(w for w in self if w)


def past_of(text: Text, family: Family) -> Past:
    """Render test conversations and return what the template does to earlier replies."""
    return Past(_reasoning(text, family), _calls(text, family))


def _reasoning(text: Text, family: Family) -> str:
    thinking_call: Message = {**ONE, "reasoning_content": _THOUGHT}
    last, loop, earlier = (
        _THOUGHT in (found or "")
        for found in (
            text([ASK, THOUGHT], (), False),
            text([ASK, thinking_call, RESULT], TOOLS, True),
            text([ASK, THOUGHT, MORE], (), True),
        )
    )
    opens = family.opens_thinking(text([ASK], (), True) or "")
    if earlier or not (last or loop or opens):
        return ""
    return "drops the reasoning of earlier turns" + (" (keeps it inside a tool loop)" if loop else "")


def _calls(text: Text, family: Family) -> str:
    """Compare the calls that the template writes to those that the family's parser reads back."""
    whole, before = text([ASK, ONE, RESULT], TOOLS, False), text([ASK], TOOLS, False)
    if whole is None or before is None or text([ASK, ANSWER, MORE], TOOLS, False) is None:
        return ""  # this template does not support tools
    read = _read_back(text, family, ONE, [RESULT])
    if read < 1:
        return "rewrites tool calls" if _NAMES[0] in _after(whole, before) else "drops tool calls"
    both = _read_back(text, family, TWO, [RESULT, OTHER])
    return "keeps only one of several tool calls" if both == 1 else ""


def _after(whole: str, before: str) -> str:
    same = next(
        (n for n, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b), min(len(whole), len(before))
    )
    return whole[same:]


def _read_back(text: Text, family: Family, reply: Message, results: Sequence[Message]) -> int:
    """Return how many of the reply's calls the parser reads back from the template's text; -1 if it is rejected."""
    whole, opening = text([ASK, reply, *results], TOOLS, False), text([ASK], TOOLS, True)
    if whole is None or opening is None:
        return -1
    if not whole.startswith(opening):  # the generation prompt opens reasoning, which earlier replies do not have
        opening = text([ASK], TOOLS, False) or ""
    said = whole[len(opening) :] if whole.startswith(opening) else _after(whole, opening)
    parser = family.parser(thinking=False, tools=TOOLS)
    parser.push(said)
    parser.finish()
    wanted = [c["function"]["name"] for c in reply["tool_calls"]]
    return len([c for c in parser.calls if c.name in wanted])


def anchors(text: Text, split: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Return the texts that may precede a reply's first character, from the last special token or earlier."""
    found: dict[str, None] = {}
    shapes: list[tuple[list[Message], Tools]] = [([ASK], ()), ([ASK, ONE, RESULT], TOOLS)]
    for before, tools in shapes:
        closed, opened = text(before, tools, False), text(before, tools, True)
        whole = text([*before, {"role": "assistant", "content": CUT}, MORE], tools, True)
        ends = [opened] if opened else []
        if whole and CUT in whole:
            ends.append(whole[: whole.index(CUT)])
        for end in ends:
            same = len(closed) if closed and end.startswith(closed) else 0
            anchor = (end[same:] if same else "") or _last_special(end, split)
            if anchor.strip():
                found[anchor] = None
    return tuple(found)


def _last_special(end: str, split: Callable[[str], list[str]]) -> str:
    pieces = split(end)  # text and special tokens alternate, text is first and last
    return "".join(pieces[-2:]) if len(pieces) >= 3 else ""
