"""Convert the input items of a Responses request to chat messages; the items of one reply become one message.

A conversation therefore links and renders alike in every dialect, and may change its dialect midway.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from openclaw_rl.errors import RequestError, json_type_name
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.openai_responses_tools import LOCAL_SHELL, prompt_name
from openclaw_rl.serve.dialects.replayed_parts import ReplayNotes
from openclaw_rl.serve.dialects.replayed_responses import read_replayed_item
from openclaw_rl.serve.dialects.validation import (
    part_type,
    read_image,
    read_tool_part,
    unreadable_part,
)
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Message, Request

DIALECT = "responses"
INSTRUCTIONS_KEY = "instructions"
"""Key that marks, in the store, the system message made from `instructions`, which `previous_response_id` leaves out.
It counts only where `has_instructions` looks for it: elsewhere it is a key of the client."""
ID_PREFIX = "resp_"

_ENCODED_PREFIX = "openclaw1."
_OWN_ITEM_ID = re.compile(r"(?:msg|rs|fc|ctc|lsc)_([0-9a-f]{28})[0-9a-f]{2,4}")
_ROLES = frozenset({"user", "system", "developer", "assistant"})
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_HOSTED_TOOL_ITEM = re.compile(
    r"(web_search|file_search|code_interpreter|image_generation)_call|computer_call(_output)?"
    r"|mcp_(call|list_tools|approval_request|approval_response)|tool_search_(call|output)"
)


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning as `encrypted_content`. It is not encrypted, because it never leaves the user's machines."""
    return (
        _ENCODED_PREFIX
        + base64.urlsafe_b64encode(reasoning.encode("utf-8", "surrogatepass")).decode()
    )


def decode_reasoning(content: Any) -> str:
    """Decode `encrypted_content`; empty if another service encrypted it."""
    if not isinstance(content, str) or not content.startswith(_ENCODED_PREFIX):
        return ""
    encoded = content.removeprefix(_ENCODED_PREFIX)
    try:
        return base64.urlsafe_b64decode(encoded.encode()).decode("utf-8", "replace")
    except ValueError:
        return ""


def system_message(instructions: str) -> dict[str, Any]:
    return {"role": "system", "content": instructions, INSTRUCTIONS_KEY: True}


def has_instructions(request: Request) -> bool:
    """Return whether the first message was made from the request's own `instructions`."""
    return request.dialect == DIALECT and request.messages[0].get(INSTRUCTIONS_KEY) is True


def response_id_of(item_id: Any) -> str:
    """Return the id of the response that an output item belongs to; "" if the gateway did not make the item."""
    match = _OWN_ITEM_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return ID_PREFIX + match.group(1) if match else ""


class ParsedInput(NamedTuple):
    """Result of reading `input`."""

    messages: list[Message]
    # Descriptions of the ignored items.
    ignored: list[str]
    # Index of an assistant message that stands for a stored reply -> id of the response.
    references: dict[int, str]
    # How earlier items were changed so that they can be read.
    degraded: tuple[Degradation, ...] = ()


def read_input(value: str | Sequence[Any] | None) -> ParsedInput:
    """Convert `input` to messages. Raises `RequestError` for the newest item, and names it."""
    if isinstance(value, str):
        return ParsedInput([{"role": "user", "content": value}], [], {})
    if not value:
        raise field_error("input", "expected a string or at least one item, got none.")
    reader = _InputReader()
    notes = ReplayNotes()
    for index, item in enumerate(value):
        try:
            reader.read_item(item, f"input[{index}]")
        except RequestError:
            if index == len(value) - 1:
                raise
            changed = read_replayed_item(item, _can_read, notes)
            if changed is not None:
                reader.read_item(changed, f"input[{index}]")
    if not reader.messages:
        raise field_error("input", "its items have no content that this model can read.")
    parsed = ParsedInput([], list(reader.ignored), {}, notes.kinds)
    for message in reader.messages:
        if not isinstance(message, _AssistantItems):
            parsed.messages.append(message)
            continue
        if message.reference:
            parsed.references[len(parsed.messages)] = message.reference
        parsed.messages.append(message.to_message())
    return parsed


def _can_read(item: Mapping[str, Any]) -> bool:
    try:
        _InputReader().read_item(item, "input")
    except RequestError:
        return False
    return True


class _AssistantItems:
    """Accumulator of one assistant message. Texts are joined once at the end, because there may be very many items."""

    def __init__(self) -> None:
        # None: no message item.
        self.texts: list[str] | None = None
        self.reasoning_texts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.reference = ""

    def to_message(self) -> dict[str, Any]:
        content = None if self.texts is None else "".join(self.texts)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning_texts:
            message["reasoning_content"] = "".join(self.reasoning_texts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _InputReader:
    """Convert items to messages, in order."""

    def __init__(self) -> None:
        self.messages: list[Message | _AssistantItems] = []
        self.ignored: dict[str, None] = {}
        # The assistant message that further items may belong to.
        self._open_items: _AssistantItems | None = None
        self._open_response_id = ""
        self._readers: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._read_message,
            "reasoning": self._read_reasoning,
            "function_call": self._read_function_call,
            "custom_tool_call": self._read_custom_call,
            "local_shell_call": self._read_shell_call,
            "function_call_output": self._read_tool_output,
            "custom_tool_call_output": self._read_tool_output,
            "local_shell_call_output": self._read_tool_output,
            "item_reference": self._read_reference,
        }

    def read_item(self, item: Any, place: str) -> None:
        """Convert one item. Raises `RequestError` that names it; nothing is converted then."""
        if not isinstance(item, dict):
            raise field_error(place, f"expected an object, got {json_type_name(item)}.")
        default = "message" if "role" in item else "item_reference"
        # The text of a value that is not a string names no reader.
        kind = str(item.get("type") or default)
        if kind in self._readers:
            self._readers[kind](item, place)
        elif _HOSTED_TOOL_ITEM.fullmatch(kind):
            self.ignored[f"input: {kind}"] = None
        else:
            raise field_error(
                f"{place}.type", f"expected one of {sorted(self._readers)}, got {kind[:60]!r}."
            )

    def _read_message(self, item: Mapping[str, Any], place: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise field_error(
                f"{place}.role", f"expected one of {sorted(_ROLES)}, got {str(role)[:60]!r}."
            )
        if role == "assistant":
            texts = _part_texts(item.get("content"), f"{place}.content")
            items = self._assistant_items_of(item)
            items.texts = items.texts or []
            items.texts += texts
            return
        self._open_items = None
        parts = _message_parts(item.get("content"), f"{place}.content", images=role == "user")
        is_one_text = len(parts) == 1 and "text" in parts[0]
        self.messages.append({"role": role, "content": parts[0]["text"] if is_one_text else parts})

    def _read_tool_output(self, item: Mapping[str, Any], place: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            raise field_error(
                f"{place}.call_id", f"expected the id of the call, got {json_type_name(call_id)}."
            )
        content = _tool_content(item.get("output"), f"{place}.output")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _assistant_items_of(self, item: Mapping[str, Any]) -> _AssistantItems:
        """Return the message that `item` belongs to: by the response id within the item ids, else by adjacency."""
        response_id = response_id_of(item.get("id"))
        items = self._open_items
        if items is None or not self._continues_open_items(response_id):
            items = _AssistantItems()
            self.messages.append(items)
            self._open_items = items
            self._open_response_id = response_id
        self._open_response_id = self._open_response_id or response_id
        return items

    def _continues_open_items(self, response_id: str) -> bool:
        if response_id and self._open_response_id:
            return response_id == self._open_response_id
        return self.messages[-1] is self._open_items

    def _read_reasoning(self, item: Mapping[str, Any], place: str) -> None:
        text = "\n\n".join(_part_texts(item.get("content") or [], f"{place}.content"))
        text = text or decode_reasoning(item.get("encrypted_content"))
        text = text or "\n\n".join(_part_texts(item.get("summary") or [], f"{place}.summary"))
        # Unreadable reasoning of another service is dropped.
        if text or response_id_of(item.get("id")):
            self._assistant_items_of(item).reasoning_texts.append(text)

    def _read_function_call(self, item: Mapping[str, Any], place: str) -> None:
        name = _tool_name(item, place)
        self._append_call(item, place, name, _required_string(item, "arguments", place))

    def _read_custom_call(self, item: Mapping[str, Any], place: str) -> None:
        arguments = _json_text({"input": _required_string(item, "input", place)})
        self._append_call(item, place, _tool_name(item, place), arguments)

    def _read_shell_call(self, item: Mapping[str, Any], place: str) -> None:
        action = item.get("action")
        if not isinstance(action, dict):
            raise field_error(
                f"{place}.action", f"expected an object, got {json_type_name(action)}."
            )
        arguments = {key: value for key, value in action.items() if value not in (None, {})}
        arguments.pop("type", None)
        self._append_call(item, place, LOCAL_SHELL, _json_text(arguments))

    def _append_call(self, item: Mapping[str, Any], place: str, name: str, arguments: str) -> None:
        call_id = _required_string(item, "call_id", place)
        call = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._assistant_items_of(item).calls.append(call)

    def _read_reference(self, item: Mapping[str, Any], place: str) -> None:
        owner = response_id_of(item.get("id"))
        if not owner:
            raise field_error(f"{place}.id", "expected the id of an output item of this gateway.")
        self._assistant_items_of(item).reference = owner


def _required_string(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise field_error(f"{place}.{key}", f"expected a string, got {json_type_name(value)}.")
    return value


def _tool_name(item: Mapping[str, Any], place: str) -> str:
    """Return the name by which the prompt calls the tool of a call. Its namespace is optional."""
    namespace = None
    if item.get("namespace") is not None:
        namespace = _required_string(item, "namespace", place)
    return prompt_name(_required_string(item, "name", place), namespace)


def _tool_content(output: Any, place: str) -> str | list[dict[str, Any]]:
    """Return the output of a tool as one text, or as parts if it has images."""
    if isinstance(output, list):
        output = [read_tool_part(part) for part in output]
    parts = _message_parts(output, place, images=True)
    texts = [part["text"] for part in parts if "text" in part]
    return "".join(texts) if len(texts) == len(parts) else parts


def _part_texts(content: Any, place: str) -> list[str]:
    """Return the text of each part of `content`."""
    return [part["text"] for part in _message_parts(content, place, images=False)]


def _message_parts(content: Any, place: str, *, images: bool) -> list[dict[str, Any]]:
    """Return `content` as text parts, and with `images` also image parts (`read_image`)."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise field_error(
            place, f"expected a string or a list of parts, got {json_type_name(content)}."
        )
    return [_read_part(part, f"{place}[{n}]", images=images) for n, part in enumerate(content)]


def _read_part(part: Any, place: str, *, images: bool) -> dict[str, Any]:
    if images and (image := read_image(part)):
        return image
    return {"type": "text", "text": _part_text(part, place)}


def _part_text(part: Any, place: str) -> str:
    kind = part_type(part)
    if kind == "refusal":
        return _required_string(part, "refusal", place)
    if kind not in _TEXT_PARTS:
        raise unreadable_part(place, part)
    return _required_string(part, "text", place)


def _json_text(value: Any) -> str:
    return to_json(value).decode()
