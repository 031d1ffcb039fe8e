"""Show a conversation that a chat template refuses: a fixed table of steps, each of which changes its form alone.

A client replays its history with every request, so a refusal of an earlier message would end the conversation for ever.
The conversation is rendered as it was sent. Only if the template refuses it, the steps of `STEPS` are added one by one,
in the order of the table, until the template takes it; the steps that were not needed are then taken out again. The
result depends on the conversation, the tools and the template alone: rendering again gives the same text.

Nothing else changes: marks, links and the stored messages are those of what the client sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from openclaw_rl.errors import TemplateRefusal

Prepared = dict[str, Any]
"""A message in the form that templates take: four roles, content a text or None."""
RenderMessages = Callable[[Sequence[Prepared]], str]
"""Renders prepared messages; raises `TemplateRefusal`."""

NO_BEGINNING = "(The beginning of the conversation is missing.)"
NO_RESULT = "(The call has no result.)"
ARGUMENTS_KEY = "arguments"
"""Name of the only argument of a call whose arguments are no JSON object; its value is their text."""
_SEPARATOR = "\n\n"
_JOINED_TEXTS = ("content", "reasoning_content", "thinking")
# An escaped half of a surrogate pair, in JSON: a pair and any other escape are matched first.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class Degradation(StrEnum):
    """How an earlier message is shown that cannot be shown as it was sent. The values are sent in a response header."""

    HALF_SURROGATE = "half-surrogate"
    """U+FFFD in the place of half a surrogate pair."""
    NON_FINITE_NUMBER = "non-finite-number"
    """NaN and the infinities, which are no JSON, as texts."""
    FOREIGN_PART = "foreign-part"
    """A content part, block or item of another server as text, as reasoning, or left out if it is encrypted."""
    MESSAGE_FORM = "message-form"
    """A role, content or other field of a wrong type as the nearest valid one."""
    CALL_FORM = "call-form"
    """A call or result without a name, an id or arguments of the right type, with stand-ins for them."""
    IMAGE = "image"
    """A placeholder in the place of an image, a file or a recording that cannot be read."""

    CALL_ARGUMENTS = "call-arguments"
    """Arguments that are no JSON object as pairs: none, or their text as one argument."""
    TOOL_RESULTS = "tool-results"
    """The result of a call that is not in the history as text of the user."""
    UNANSWERED_CALLS = "unanswered-calls"
    """A placeholder as the result of a call that has none."""
    SYSTEM_MESSAGES = "system-messages"
    """System messages at the start as one; later ones as text of the user."""
    SINGLE_CALLS = "single-calls"
    """A reply with several calls as several replies, each with one call and its result."""
    CALLS_AS_TEXT = "calls-as-text"
    """Calls and their results as text."""
    SYSTEM_AS_USER = "system-as-user"
    """The system message as text of the user."""
    USER_MESSAGE = "user-message"
    """A placeholder as the user's message that the conversation does not begin with."""
    ALTERNATION = "alternation"
    """Neighbouring messages of one role as one."""


class Shown(NamedTuple):
    """A rendered conversation, and the steps that it took: none if it is rendered as sent."""

    text: str
    steps: tuple[Degradation, ...]


def render_degraded(render: RenderMessages, messages: Sequence[Prepared]) -> Shown:
    """Render the conversation as sent; if the template refuses it, with the steps of `STEPS` that it needs.

    Raises `TemplateRefusal`, that of the conversation as sent, if the template refuses it after every step, too.
    """
    try:
        return Shown(render(messages), ())
    except TemplateRefusal as error:
        refusal = error
    steps: list[Degradation] = []
    text: str | None = None
    reached = list(messages)
    for step, change in STEPS.items():
        changed = change(reached)
        if changed == reached:
            continue
        reached = changed
        steps.append(step)
        text = _try_render(render, reached)
        if text is not None:
            break
    if text is None:
        raise refusal
    return _without_needless(render, messages, steps, text)


def _without_needless(
    render: RenderMessages, messages: Sequence[Prepared], steps: list[Degradation], text: str
) -> Shown:
    """Take out each step without which the template takes the conversation, too; those that change most first."""
    for step in _BY_CHANGE:
        fewer = [one for one in steps if one is not step]
        if not fewer or len(fewer) == len(steps):
            continue
        plainer = _try_render(render, apply_steps(messages, fewer))
        if plainer is not None:
            steps = fewer
            text = plainer
    return Shown(text, tuple(steps))


def apply_steps(messages: Sequence[Prepared], steps: Sequence[Degradation]) -> list[Prepared]:
    """Return the conversation after the steps, which are in the order of `STEPS`."""
    changed = list(messages)
    for step in steps:
        changed = STEPS[step](changed)
    return changed


def _try_render(render: RenderMessages, messages: Sequence[Prepared]) -> str | None:
    try:
        return render(messages)
    except TemplateRefusal:
        return None


# The arguments of calls.


def read_arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a call as pairs: of a text that is no JSON object, the text as one argument."""
    if isinstance(value, dict):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    parsed = _read_json(text)
    if isinstance(parsed, dict):
        return parsed
    return {} if text.strip() in ("", "null") else {ARGUMENTS_KEY: text}


def _read_json(text: str) -> Any:
    """Return the value of a JSON text that may have line ends in strings, NaN and half surrogates; None for others."""
    try:
        return json.loads(replace_half_escapes(text), strict=False, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def replace_half_escapes(text: str) -> str:
    r"""Return JSON in which each `\uD83D` that is not part of a pair is `\uFFFD`."""
    if "\\u" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\\ufffd" if match["half"] else match[0], text)


def _read_all_arguments(messages: list[Prepared]) -> list[Prepared]:
    return [
        {**m, "tool_calls": [_with_pairs(call) for call in _calls(m)]} if _calls(m) else m
        for m in messages
    ]


def _with_pairs(call: Prepared) -> Prepared:
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str) and _is_object(arguments):
        # The families whose templates take texts have them already.
        return call
    return {**call, "function": {**call["function"], "arguments": read_arguments(arguments)}}


def _is_object(text: str) -> bool:
    # As `to_template_message` reads arguments: without NaN and half surrogates, which `json` takes.
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


# Calls and results that do not belong together.


def _detach_results(messages: list[Prepared]) -> list[Prepared]:
    """Return results whose call is not in the reply before them as text of the user."""
    changed: list[Prepared] = []
    open_ids: list[str] = []
    for message in messages:
        if message["role"] != "tool":
            open_ids = list(map(_call_id, _calls(message)))
        elif (id_ := _result_id(message)) in open_ids:
            open_ids.remove(id_)
        else:
            message = _result_text(message)
        changed.append(message)
    return changed


def _calls(message: Prepared) -> Sequence[Prepared]:
    return message.get("tool_calls") or ()


def _call_id(call: Prepared) -> str:
    return str(call.get("id") or "")


def _result_id(message: Prepared) -> str:
    return str(message.get("tool_call_id") or "")


def _answer_calls(messages: list[Prepared]) -> list[Prepared]:
    """Return the conversation with a result for each call of a reply that is not the last message."""
    changed: list[Prepared] = []
    open_calls: Sequence[Prepared] = ()
    for message in messages:
        if message["role"] == "tool":
            answered = _result_id(message)
            open_calls = [call for call in open_calls if _call_id(call) != answered]
        else:
            changed += map(_placeholder_result, open_calls)
            open_calls = _calls(message)
        changed.append(message)
    return changed


def _placeholder_result(call: Prepared) -> Prepared:
    return {
        "role": "tool",
        "tool_call_id": _call_id(call),
        "name": call["function"]["name"],
        "content": NO_RESULT,
    }


def _split_calls(messages: list[Prepared]) -> list[Prepared]:
    """Return replies with several calls as replies with one each; every result follows its call."""
    return [message for group in _with_results(messages) for message in _split_reply(group)]


def _with_results(messages: Sequence[Prepared]) -> Iterator[list[Prepared]]:
    """Yield each message with the results that follow it."""
    group: list[Prepared] = []
    for message in messages:
        if message["role"] != "tool" and group:
            yield group
            group = []
        group.append(message)
    yield group


def _split_reply(group: list[Prepared]) -> list[Prepared]:
    reply = group[0]
    calls = _calls(reply)
    if len(calls) < 2:
        return group
    results = group[1:]
    changed: list[Prepared] = []
    for call in calls:
        changed.append({**reply, "tool_calls": [call]})
        changed += _take_results(results, _call_id(call))
        # The text beside the calls is shown once.
        reply = {"role": "assistant", "content": ""}
    return changed + results


def _take_results(results: list[Prepared], id_: str) -> list[Prepared]:
    """Remove and return the results of a call."""
    taken = [result for result in results if _result_id(result) == id_]
    results[:] = [result for result in results if _result_id(result) != id_]
    return taken


def _write_calls_as_text(messages: list[Prepared]) -> list[Prepared]:
    return [_result_text(m) if m["role"] == "tool" else _call_texts(m) for m in messages]


def _result_text(message: Prepared) -> Prepared:
    return {"role": "user", "content": f"The tool gave:\n{message.get('content') or ''}"}


def _call_texts(message: Prepared) -> Prepared:
    calls = _calls(message)
    if not calls:
        return message
    texts = [message.get("content") or "", *map(_call_text, calls)]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": _SEPARATOR.join(filter(None, texts))}


def _call_text(call: Prepared) -> str:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return f"Call of the tool {function['name']} with {arguments}"


# Roles.


def _join_system_messages(messages: list[Prepared]) -> list[Prepared]:
    """Join the system messages at the start; later ones become the user's, in their place."""
    leading = len(list(_leading_system(messages)))
    changed = [_joined(messages[:leading])] if leading else []
    for message in messages[leading:]:
        changed.append(_as_user(message) if message["role"] == "system" else message)
    return changed


def _leading_system(messages: Sequence[Prepared]) -> Iterator[Prepared]:
    for message in messages:
        if message["role"] != "system":
            return
        yield message


def _as_user(message: Prepared) -> Prepared:
    return {"role": "user", "content": message.get("content") or ""}


def _show_system_as_user(messages: list[Prepared]) -> list[Prepared]:
    return [_as_user(m) if m["role"] == "system" else m for m in messages]


def _begin_with_user(messages: list[Prepared]) -> list[Prepared]:
    """Return the conversation with a message of the user as the first one that is not the system's."""
    start = len(list(_leading_system(messages)))
    if start < len(messages) and messages[start]["role"] == "user":
        return messages
    return [*messages[:start], {"role": "user", "content": NO_BEGINNING}, *messages[start:]]


def _join_neighbours(messages: list[Prepared]) -> list[Prepared]:
    """Join neighbouring messages of one role; results of several calls stay apart."""
    changed: list[Prepared] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        run = list(group)
        changed += run if role == "tool" else [_joined(run)]
    return changed


def _joined(run: Sequence[Prepared]) -> Prepared:
    """Return messages of one role as one."""
    if len(run) == 1:
        return run[0]
    joined = {key: value for message in run for key, value in message.items()}
    joined |= {key: _join_texts(run, key) for key in _JOINED_TEXTS if key in joined}
    calls = [call for message in run for call in _calls(message)]
    return joined | ({"tool_calls": calls} if calls else {})


def _join_texts(run: Sequence[Prepared], key: str) -> str:
    return _SEPARATOR.join(str(message[key]) for message in run if message.get(key))


STEPS: dict[Degradation, Callable[[list[Prepared]], list[Prepared]]] = {
    Degradation.CALL_ARGUMENTS: _read_all_arguments,
    Degradation.TOOL_RESULTS: _detach_results,
    Degradation.UNANSWERED_CALLS: _answer_calls,
    Degradation.SYSTEM_MESSAGES: _join_system_messages,
    Degradation.SINGLE_CALLS: _split_calls,
    Degradation.CALLS_AS_TEXT: _write_calls_as_text,
    Degradation.SYSTEM_AS_USER: _show_system_as_user,
    Degradation.USER_MESSAGE: _begin_with_user,
    Degradation.ALTERNATION: _join_neighbours,
}
"""The steps in the order in which they are tried and applied. After all of them, user and assistant alternate, begin
with the user, and have texts only: every template takes that."""
_BY_CHANGE = (
    Degradation.CALLS_AS_TEXT,
    Degradation.SYSTEM_AS_USER,
    Degradation.USER_MESSAGE,
    Degradation.ALTERNATION,
    Degradation.SYSTEM_MESSAGES,
    Degradation.SINGLE_CALLS,
    Degradation.UNANSWERED_CALLS,
    Degradation.TOOL_RESULTS,
    Degradation.CALL_ARGUMENTS,
)
