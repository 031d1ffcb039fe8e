"""Convert the input items of a Responses request to chat messages; the items of one reply become one message.

A conversation therefore links and renders alike in every dialect, and may change its dialect midway.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from openclaw_rl.serve.dialects.openai_responses_tools import LOCAL_SHELL, shown_name
from openclaw_rl.serve.dialects.validation import bad, kind_of, part_name, unseen
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Message, Request

DIALECT = "responses"
INSTRUCTIONS = "instructions"
"""Key that marks, in the store, the system message made from `instructions`, which `previous_response_id` leaves out.
It counts only where `has_instructions` looks for it: elsewhere it is a key of the client."""
ID_PREFIX = "resp_"

_SEALED = "openclaw1."
_OWN_ID = re.compile(r"(?:msg|rs|fc|ctc|lsc)_([0-9a-f]{28})[0-9a-f]{2,4}")
_ROLES = frozenset({"user", "system", "developer", "assistant"})
_TEXT = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_HOSTED = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "computer_call",
        "computer_call_output",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
    }
)


def sealed(reasoning: str) -> str:
    """Encode reasoning as `encrypted_content`. It is not encrypted, because it never leaves the user's machines."""
    return _SEALED + base64.urlsafe_b64encode(reasoning.encode("utf-8", "surrogatepass")).decode()


def unsealed(content: Any) -> str:
    """Decode `encrypted_content`; empty if another service encrypted it."""
    if not isinstance(content, str) or not content.startswith(_SEALED):
        return ""
    try:
        return base64.urlsafe_b64decode(content[len(_SEALED) :].encode()).decode("utf-8", "replace")
    except ValueError:
        return ""


def system_message(instructions: str) -> dict[str, Any]:
    return {"role": "system", "content": instructions, INSTRUCTIONS: True}


def has_instructions(request: Request) -> bool:
    """Return whether the first message was made from the request's own `instructions`."""
    return request.dialect == DIALECT and request.messages[0].get(INSTRUCTIONS) is True


def owner_of(item_id: Any) -> str:
    """Return the id of the response that an output item belongs to; "" if the gateway did not make the item."""
    found = _OWN_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return ID_PREFIX + found.group(1) if found else ""


class Given(NamedTuple):
    """Result of reading `input`."""

    messages: list[Message]
    ignored: list[str]  # descriptions of the ignored items
    references: dict[int, str]  # index of an assistant message that stands for a stored reply -> id of the response


def read_input(given: str | Sequence[Mapping[str, Any]] | None) -> Given:
    """Convert `input` to messages. Raises `RequestError` that names the item."""
    if isinstance(given, str):
        return Given([{"role": "user", "content": given}], [], {})
    if not given:
        raise bad("input", "input: expected a string or at least one item, got none.")
    reader = _Reader()
    for index, item in enumerate(given):
        reader.read(item, f"input[{index}]")
    if not reader.said:
        raise bad("input", "input: its items have no content that this model can read.")
    messages = [m.message() if isinstance(m, _Turn) else m for m in reader.said]
    references = {n: m.reference for n, m in enumerate(reader.said) if isinstance(m, _Turn) and m.reference}
    return Given(messages, list(reader.ignored), references)


class _Turn:
    """Accumulator of one assistant message. Texts are joined once at the end, because there may be very many items."""

    def __init__(self) -> None:
        self.words: list[str] | None = None  # None: no message item
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.reference = ""

    def message(self) -> dict[str, Any]:
        content = None if self.words is None else "".join(self.words)
        out: dict[str, Any] = {"role": "assistant", "content": content}
        if self.thoughts:
            out["reasoning_content"] = "".join(self.thoughts)
        return out | {"tool_calls": self.calls} if self.calls else out


class _Reader:
    """Convert items to messages, in order."""

    def __init__(self) -> None:
        self.said: list[Message | _Turn] = []
        self.ignored: dict[str, None] = {}
        self._turn: _Turn | None = None  # the assistant message that further items may belong to
        self._owner = ""
        self._kinds: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "local_shell_call": self._shell_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "local_shell_call_output": self._output,
            "item_reference": self._reference,
        }

    def read(self, item: Mapping[str, Any], place: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        known = self._kinds.get(kind) if isinstance(kind, str) else None
        if known is not None:
            known(item, place)
        elif isinstance(kind, str) and kind in _HOSTED:
            self.ignored[f"input: {kind}"] = None
        else:
            raise bad(f"{place}.type", f"{place}.type: expected one of {sorted(self._kinds)}, got {str(kind)[:60]!r}.")

    def _message(self, item: Mapping[str, Any], place: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise bad(f"{place}.role", f"{place}.role: expected one of {sorted(_ROLES)}, got {str(role)[:60]!r}.")
        parts = _texts(item.get("content"), f"{place}.content")
        if role == "assistant":
            turn = self._turn_of(item)
            turn.words = turn.words or []
            turn.words += parts
            return
        self._turn = None
        content = parts[0] if len(parts) == 1 else [{"type": "text", "text": text} for text in parts]
        self.said.append({"role": role, "content": content})

    def _output(self, item: Mapping[str, Any], place: str) -> None:
        call = item.get("call_id") or item.get("id")
        if not isinstance(call, str):
            raise bad(f"{place}.call_id", f"{place}.call_id: expected the id of the call, got {kind_of(call)}.")
        text = "".join(_texts(item.get("output"), f"{place}.output", given=True))
        self.said.append({"role": "tool", "tool_call_id": call, "content": text})

    def _turn_of(self, item: Mapping[str, Any]) -> _Turn:
        """Return the message that `item` belongs to: by the response id within the item ids, else by adjacency."""
        owner, turn = owner_of(item.get("id")), self._turn
        adjacent = turn is not None and self.said[-1] is turn
        same = owner == self._owner if owner and self._owner else adjacent
        if turn is None or not same:
            turn = _Turn()
            self.said.append(turn)
            self._turn, self._owner = turn, owner
        self._owner = self._owner or owner
        return turn

    def _reasoning(self, item: Mapping[str, Any], place: str) -> None:
        text = "\n\n".join(_texts(item.get("content") or [], f"{place}.content"))
        text = text or unsealed(item.get("encrypted_content"))
        text = text or "\n\n".join(_texts(item.get("summary") or [], f"{place}.summary"))
        if text or owner_of(item.get("id")):  # unreadable reasoning of another service is dropped
            self._turn_of(item).thoughts.append(text)

    def _function_call(self, item: Mapping[str, Any], place: str) -> None:
        namespace = item.get("namespace")
        if not isinstance(namespace, str | None):
            raise bad(f"{place}.namespace", f"{place}.namespace: expected a string, got {kind_of(namespace)}.")
        name = shown_name(_string(item, "name", place), namespace)
        self._call(item, place, name, _string(item, "arguments", place))

    def _custom_call(self, item: Mapping[str, Any], place: str) -> None:
        namespace = item.get("namespace")
        name = shown_name(_string(item, "name", place), namespace if isinstance(namespace, str) else None)
        self._call(item, place, name, _json({"input": _string(item, "input", place)}))

    def _shell_call(self, item: Mapping[str, Any], place: str) -> None:
        action = item.get("action")
        if not isinstance(action, dict):
            raise bad(f"{place}.action", f"{place}.action: expected an object, got {kind_of(action)}.")
        arguments = {k: v for k, v in action.items() if k != "type" and v not in (None, {})}
        self._call(item, place, LOCAL_SHELL, _json(arguments))

    def _call(self, item: Mapping[str, Any], place: str, name: str, arguments: str) -> None:
        call_id = _string(item, "call_id", place)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn_of(item).calls.append(call)

    def _reference(self, item: Mapping[str, Any], place: str) -> None:
        owner = owner_of(item.get("id"))
        if not owner:
            raise bad(f"{place}.id", f"{place}.id: expected the id of an output item of this gateway.")
        self._turn_of(item).reference = owner


def _string(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise bad(f"{place}.{key}", f"{place}.{key}: expected a string, got {kind_of(value)}.")
    return value


def _texts(content: Any, place: str, *, given: bool = False) -> list[str]:
    """Return the text of each part of a content. `given`: of a tool result, in which placeholders replace images."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad(place, f"{place}: expected a string or a list of parts, got {kind_of(content)}.")
    return [(given and _unseen(part)) or _text(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _unseen(part: Any) -> str | None:
    return unseen(part.get("type")) if isinstance(part, dict) else None


def _text(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return _string(part, "refusal", place)
    if not isinstance(kind, str) or kind not in _TEXT:
        raise bad(place, f"{place}: got {part_name(part)}; this model reads text only.")
    return _string(part, "text", place)


def _json(value: Any) -> str:
    return to_json(value).decode()
