"""The format of tool calls and reasoning, derived from a chat template: it renders calls with marked names and values.

The text before, between and behind the marks shows how the model was taught to write a call. Three forms are found: a
JSON object (or a list of them) behind a tag, a name with JSON arguments behind it, and a tag for each argument.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.render.call_body import ToolList
from openclaw_rl.types import Message

NAMES = ("fXq0name", "fXq1name")
KEYS = ("kXq0key", "kXq1key")
VALUES = ("vXq0text", "vXq1text")
NUMBER = 739_215
CONTENT = "aXq0content"
THOUGHT = "tXq0thought"
CALL_IDS = ("callabc10", "callabc11")
_TAG_STARTS = "<[ \n\t"
_TAG_ENDS = ">]} \n\t"
_USER: Message = {"role": "user", "content": "u1"}
_OPENING_TAG = re.compile(r"[<\[][^<>\[\]]+[>\]]\w*\Z")
"""A tag at the end of a text, and a word behind it that names a channel."""
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentForm:
    """Literals around one argument in a tag of its own. `is_text`: values of this form are text as it stands.

    `after` may contain the key once more, as `KEYS[0]`.
    """

    before: str
    between: str
    after: str
    is_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedCallFormat:
    """Literals around the calls of one reply, without white space at their ends.

    `opener` and `closer`: around all calls; `before` and `after`: around one, with the name between `before` and
    `middle`. Calls are a list of Python calls (`is_python`), JSON objects (`name_key` is set), have JSON arguments
    (`arguments` is empty), or a tag for each argument.
    """

    opener: str
    closer: str
    before: str = ""
    middle: str = ""
    after: str = ""
    name_key: str | None = None
    arguments_key: str | None = None
    arguments: tuple[ArgumentForm, ...] = ()
    separator: str = ""
    is_python: bool = False

    @property
    def literals(self) -> tuple[str, ...]:
        """All literals."""
        forms = [part for one in self.arguments for part in (one.before, one.between, one.after)]
        return (self.opener, self.closer, self.before, self.middle, self.after, *forms)


def _tool(number: int) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in KEYS}
    return {
        "type": "function",
        "function": {
            "name": NAMES[number],
            "description": "e",
            "parameters": {"type": "object", "properties": properties},
        },
    }


TOOLS: ToolList = [_tool(0), _tool(1)]


def _call(number: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": NAMES[number], "arguments": dict(arguments)}
    return {"id": CALL_IDS[number], "type": "function", "function": function}


def _result(number: int) -> Message:
    return {
        "role": "tool",
        "content": f"r{number}",
        "tool_call_id": CALL_IDS[number],
        "name": NAMES[number],
    }


class TemplateSamples:
    """The text that a template writes for replies. `render`: see `template_probe.RenderFunction`."""

    def __init__(self, render: Any) -> None:
        self._render = render
        self.start, self.end = self._around_content()

    def of_reply(self, reply: Message, results: Sequence[Message] = ()) -> str | None:
        """Return the text of a reply, from where it begins; None if the template refuses it."""
        whole = self._render([_USER, reply], TOOLS, False)
        if whole is None and results:
            whole = self._render([_USER, reply, *results], TOOLS, False)
        if whole is None:
            return None
        closed = self._render([_USER], TOOLS, False) or ""
        for opening in (self._render([_USER], TOOLS, True), closed):
            if opening and whole.startswith(opening):
                return str(whole[len(opening) :])
        return str(whole[len(_common_prefix(whole, closed)) :])

    def of_calls(self, *calls: Mapping[str, Any]) -> str | None:
        """Return the text of calls with these arguments, between what is around every reply."""
        made = [_call(number, arguments) for number, arguments in enumerate(calls)]
        results = [_result(number) for number in range(len(calls))]
        text = self.of_reply({"role": "assistant", "content": "", "tool_calls": made}, results)
        if text is None:
            return None
        text = text[len(_to_tag(_common_prefix(text, self.start))) :]
        text = text.replace(CALL_IDS[1], CALL_IDS[0])
        end = self.end.strip()
        # The separator of turns may also stand before the name.
        at = text.find(end, max(text.find(NAMES[len(calls) - 1]), 0)) if end else -1
        return text if at < 0 else text[:at]

    def _around_content(self) -> tuple[str, str]:
        text = self.of_reply({"role": "assistant", "content": CONTENT}) or ""
        start, _, end = text.partition(CONTENT)
        return start, end


def derive_format(render: Any) -> DerivedCallFormat | None:
    """Return the format of calls in a template; None if it writes none that is understood."""
    samples = TemplateSamples(render)
    one = samples.of_calls({KEYS[0]: VALUES[0]})
    if one is None or NAMES[0] not in one:
        return None
    return (
        _object_format(one)
        or _named_format(one, samples)
        or _python_format(one)
        or _tagged_format(one, samples)
    )


def derive_think_tags(
    render: Any, calls: DerivedCallFormat | None = None
) -> tuple[str, str] | None:
    """Return the tags around reasoning in a template; None if it writes none.

    `calls`: their format. Some templates write reasoning before calls only.
    """
    samples = TemplateSamples(render)
    thoughts = {"reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT}
    reply = {"role": "assistant", "content": CONTENT, **thoughts}
    tags = _tags_around_thought(samples.of_reply(reply) or "", CONTENT)
    opener = "" if calls is None else calls.opener or calls.before
    if tags is not None or not opener:
        return tags
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [_call(0, {KEYS[0]: VALUES[0]})],
        **thoughts,
    }
    return _tags_around_thought(samples.of_reply(called, [_result(0)]) or "", opener)


def _tags_around_thought(text: str, following: str) -> tuple[str, str] | None:
    """Return the tags between which the thought stands, where `following` comes next."""
    before, thought, after = text.partition(THOUGHT)
    between, follows, _ = after.partition(following)
    opening = _OPENING_TAG.search(before.rstrip())
    closing = between.strip()
    if not thought or not follows or opening is None or not _is_tag(closing):
        return None
    return opening[0], closing


def _is_tag(text: str) -> bool:
    return len(text) > 2 and text[0] in "<[" and text[-1] in ">]"


# ---------------------------------------------------------------------------------------- JSON objects


def _object_format(one: str) -> DerivedCallFormat | None:
    found = _find_json(one, lambda value: NAMES[0] in json.dumps(value))
    if found is None:
        return None
    value, start, end = found
    item = value[0] if isinstance(value, list) else value
    opener = one[:start].strip()
    if not isinstance(item, dict) or not _is_opener(opener):
        return None
    arguments = {KEYS[0]: VALUES[0]}
    by_value = {json.dumps(part): key for key, part in item.items()}
    name_key = by_value.get(json.dumps(NAMES[0]))
    arguments_key = by_value.get(json.dumps(arguments))
    if item == {NAMES[0]: arguments}:
        name_key = arguments_key = ""
    if name_key is None or arguments_key is None:
        return None
    return DerivedCallFormat(
        opener=opener, closer=one[end:].strip(), name_key=name_key, arguments_key=arguments_key
    )


def _find_json(text: str, is_wanted: Any) -> tuple[Any, int, int] | None:
    """Return the first JSON object or array of a text that is wanted, and where it stands."""
    for start, mark in enumerate(text):
        if mark not in "{[":
            continue
        try:
            value, end = _decoder.raw_decode(text, start)
        except ValueError:
            continue
        if is_wanted(value):
            return value, start, end
    return None


def _python_format(one: str) -> DerivedCallFormat | None:
    found = re.search(rf"\[{NAMES[0]}\({KEYS[0]}\s*=\s*(['\"]){VALUES[0]}\1\)\]", one)
    if found is None or not _is_opener(one[: found.start()].strip()):
        return None
    return DerivedCallFormat(
        opener=one[: found.start()].strip(), closer=one[found.end() :].strip(), is_python=True
    )


# --------------------------------------------------------------------------- a name, and JSON arguments


def _named_format(one: str, samples: TemplateSamples) -> DerivedCallFormat | None:
    found = _find_json(one, lambda value: value == {KEYS[0]: VALUES[0]})
    if found is None:
        return None
    _, start, end = found
    at = one.rfind(NAMES[0], 0, start)
    if at < 0:
        return None
    parts = _around_calls(one[:at], one[end:], samples, lambda text: _json_end(text))
    return _checked(
        DerivedCallFormat(
            opener=parts[0],
            before=parts[1],
            middle=one[at + len(NAMES[0]) : start].strip(),
            after=parts[2],
            closer=parts[3],
        )
    )


def _json_end(text: str) -> int:
    found = _find_json(text, lambda value: value == {KEYS[0]: VALUES[0]})
    return found[2] if found is not None else -1


# --------------------------------------------------------------------------------- a tag for each argument


def _tagged_format(one: str, samples: TemplateSamples) -> DerivedCallFormat | None:
    key_at = one.find(KEYS[0])
    name_at = one.rfind(NAMES[0], 0, max(key_at, 0))
    value_at = one.find(VALUES[0], key_at)
    two = samples.of_calls({KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]})
    if min(key_at, name_at, value_at) < 0 or two is None:
        return None
    value_end = value_at + len(VALUES[0])
    head = one[name_at + len(NAMES[0]) : key_at]
    gap_start = two.find(VALUES[0]) + len(VALUES[0])
    gap = two[gap_start : two.find(KEYS[1], gap_start)]
    after_value = _to_tag(_common_prefix(one[value_end:], gap))
    before_key = _from_tag(_common_suffix(head, gap[len(after_value) :]))
    form = ArgumentForm(
        before=before_key.strip(),
        between=one[key_at + len(KEYS[0]) : value_at],
        after=after_value.strip(),
        is_text=True,
    )
    forms = [form, *_other_forms(form, samples)]
    if len(forms) == 1:
        forms = [
            ArgumentForm(before=form.before, between=form.between, after=form.after, is_text=False)
        ]
    parts = _around_calls(
        one[:name_at],
        one[value_end + len(after_value) :],
        samples,
        lambda text: text.find(VALUES[0]) + len(VALUES[0]) + len(after_value),
    )
    separator = gap[len(after_value) : len(gap) - len(before_key)].strip()
    return _checked(
        DerivedCallFormat(
            opener=parts[0],
            before=parts[1],
            middle=head[: len(head) - len(before_key)].strip(),
            after=parts[2],
            closer=parts[3],
            arguments=tuple(forms),
            separator=separator,
        )
    )


def _other_forms(text_form: ArgumentForm, samples: TemplateSamples) -> list[ArgumentForm]:
    """Return the forms of arguments that are no text, where they differ from those of text."""
    forms: list[ArgumentForm] = []
    for value in (NUMBER, True, [NUMBER], {"kXq9key": NUMBER}):
        text = samples.of_calls({KEYS[0]: value, KEYS[1]: VALUES[1]})
        written = _written_value(text or "", value)
        if text is None or written is None:
            continue
        start, end = written
        between = text[text.find(KEYS[0]) + len(KEYS[0]) : start]
        gap = text[end : text.find(KEYS[1], end)]
        second_before = text_form.before
        after = gap.strip().removesuffix(second_before).rstrip() if second_before else gap.strip()
        if not second_before:
            after = after.rstrip(",").rstrip()
        form = ArgumentForm(before=text_form.before, between=between, after=after, is_text=False)
        is_same = (between.strip(), after) == (text_form.between.strip(), text_form.after)
        if not is_same and form not in forms:
            forms.append(form)
    return forms


def _written_value(text: str, value: Any) -> tuple[int, int] | None:
    """Return where a value that is no text stands in the text of a call."""
    key = text.find(KEYS[0]) + len(KEYS[0])
    following = text.find(KEYS[1], key)
    for written in (json.dumps(value), json.dumps(value, separators=(",", ":")), str(value)):
        at = text.find(written, key, following)
        if at >= 0:
            return at, at + len(written)
    return None


# ------------------------------------------------------------------------------------- around the calls


def _around_calls(
    before_all: str, after_all: str, samples: TemplateSamples, end_of_first: Any
) -> tuple[str, str, str, str]:
    """Return the literals before all calls and before one, and those behind one and behind all."""
    two = samples.of_calls({KEYS[0]: VALUES[0]}, {KEYS[0]: VALUES[0]})
    at = -1 if two is None else two.find(NAMES[1])
    end = -1 if two is None else end_of_first(two)
    if two is None or at < 0 or not 0 <= end <= at:
        return "", _without_name(before_all), after_all.strip(), ""
    gap = two[end:at]
    after = _to_tag(_common_prefix(after_all, gap))
    before = _from_tag(_common_suffix(before_all, gap[len(after) :]))
    return (
        _without_name(before_all[: len(before_all) - len(before)]),
        before.strip(),
        after.strip(),
        after_all[len(after) :].strip(),
    )


def _without_name(text: str) -> str:
    """Return the literal behind a tag that also has the name, as a header may."""
    at = text.rfind(NAMES[0])
    if at >= 0:
        text = text[text.find(">", at) + 1 :]
    return text.strip()


def _common_prefix(one: str, other: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: len(list(same))]


def _common_suffix(one: str, other: str) -> str:
    return _common_prefix(one[::-1], other[::-1])[::-1]


def _from_tag(text: str) -> str:
    """Return the text from where its first tag, or white space, begins: what is before belongs to another tag."""
    while text and text[0] not in _TAG_STARTS:
        text = text[1:]
    return text


def _to_tag(text: str) -> str:
    """Return the text up to where its last tag ends."""
    while text and text[-1] not in _TAG_ENDS:
        text = text[:-1]
    return text


def _is_opener(text: str) -> bool:
    """Whether a text is a tag, which people's words hardly contain."""
    return len(text) > 2 and not text[0].isalnum() and any(mark in text for mark in "<[")


def _checked(format_: DerivedCallFormat) -> DerivedCallFormat | None:
    return format_ if _is_opener(format_.opener or format_.before) and format_.after else None
