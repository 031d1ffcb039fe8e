"""Convert a reply to Responses output items, and build the Response object."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from openclaw_rl.render.chat_template import content_text
from openclaw_rl.serve.chat_request import ReplyHeader, TokenInfo, TokenUsage
from openclaw_rl.serve.dialects.base import header_fields, openai_usage, token_entry
from openclaw_rl.serve.dialects.openai_responses_input import ID_PREFIX, encode_reasoning
from openclaw_rl.serve.dialects.openai_responses_tools import LOCAL_SHELL, ToolOrigin
from openclaw_rl.types import FinishReason, Message

Item = dict[str, Any]
COMPLETED = "completed"
INCOMPLETE = "incomplete"
IN_PROGRESS = "in_progress"
_ID_PREFIXES = {"custom_tool_call": "ctc", "local_shell_call": "lsc", "function_call": "fc"}
_object_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """Data of the request that the response needs."""

    # Request fields that the Response object repeats.
    echo: Mapping[str, Any]
    origins: Mapping[str, ToolOrigin] = field(default_factory=dict)
    # Also send the reasoning as `encrypted_content`.
    seal: bool = False


class _ShellAction(msgspec.Struct):
    command: list[str]
    env: dict[str, Any] = {}


class ItemIdGenerator:
    """Generator of item ids. They contain the response id, so that a history shows which items were one reply."""

    def __init__(self, response: str) -> None:
        self._base = response.removeprefix(ID_PREFIX)
        self._next_number = 0

    def next_id(self, prefix: str) -> str:
        number = self._next_number
        self._next_number = self._next_number + 1
        return f"{prefix}_{self._base}{number:02x}"


# ----------------------------------------------------------------------------------------- items


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(id_: str, content: Sequence[Item], status: str) -> Item:
    return {
        "id": id_,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def reasoning_item(id_: str, text: str | None, status: str, *, seal: bool) -> Item:
    """Return a reasoning item. `text` None: the item has only begun."""
    item: Item = {"id": id_, "type": "reasoning", "summary": [], "content": [], "status": status}
    if text is not None:
        item["content"] = [{"type": "reasoning_text", "text": text}]
    if seal:
        item["encrypted_content"] = encode_reasoning(text or "")
    return item


def call_item(
    call: Mapping[str, Any], ids: ItemIdGenerator, origins: Mapping[str, ToolOrigin]
) -> Item:
    """Return the item of a tool call. A shell call with malformed arguments stays a function call."""
    name = str(call["function"]["name"])
    arguments = str(call["function"]["arguments"])
    origin = origins.get(name) or ToolOrigin("function", name)
    item: Item = {
        "type": "function_call",
        "call_id": call["id"],
        "name": origin.name,
        "arguments": arguments,
    }
    if origin.kind == "custom":
        text = _custom_tool_input(arguments)
        item = {
            "type": "custom_tool_call",
            "call_id": call["id"],
            "name": origin.name,
            "input": text,
        }
    elif origin.kind == LOCAL_SHELL and (action := _shell_action(arguments)) is not None:
        item = {"type": "local_shell_call", "call_id": call["id"], "action": action}
    if origin.namespace is not None and item["type"] != "local_shell_call":
        item["namespace"] = origin.namespace
    return {"id": ids.next_id(_ID_PREFIXES[item["type"]]), "status": COMPLETED} | item


def _custom_tool_input(arguments: str) -> str:
    """Return the `input` string of a custom tool call; the raw arguments if they have no such string."""
    value = _parse_arguments(arguments).get("input")
    return value if isinstance(value, str) else arguments


def _shell_action(arguments: str) -> Item | None:
    """Return the action of a local shell call; None if the arguments do not have its shape."""
    parsed = _parse_arguments(arguments)
    try:
        action = msgspec.convert(parsed, _ShellAction)
    except msgspec.ValidationError:
        return None
    return {"type": "exec", "command": action.command, "env": action.env} | parsed


def _parse_arguments(arguments: str) -> Item:
    try:
        return _object_decoder.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def output_items(
    message: Message,
    ids: ItemIdGenerator,
    origins: Mapping[str, ToolOrigin],
    *,
    status: str = COMPLETED,
    tokens: Sequence[TokenInfo] = (),
    seal: bool = False,
) -> list[Item]:
    """Convert an assistant message to items, at least one."""
    items: list[Item] = []
    reasoning = str(message.get("reasoning_content") or "")
    content = content_text(message.get("content"))
    calls = message.get("tool_calls") or ()
    pending_tokens = PendingTokens(tokens)
    if reasoning:
        pending_tokens.take_for_text(reasoning)
        items.append(reasoning_item(ids.next_id("rs"), reasoning, COMPLETED, seal=seal))
    is_empty = not (reasoning or content or calls)
    if content or is_empty:
        logprobs = [token_entry(token) for token in pending_tokens.take_for_text(content)]
        part = text_part(content, logprobs)
        items.append(message_item(ids.next_id("msg"), [part], COMPLETED))
    items += [call_item(call, ids, origins) for call in calls]
    # Call items are always complete.
    if items[-1]["type"] in ("message", "reasoning"):
        items[-1]["status"] = status
    return items


# ---------------------------------------------------------------------------------------- tokens


class PendingTokens:
    """Tokens that wait for their text. Tokens between the texts (tags, calls) are skipped."""

    def __init__(self, tokens: Sequence[TokenInfo] = ()) -> None:
        self._pending = list(tokens)

    def add(self, tokens: Sequence[TokenInfo]) -> None:
        self._pending += tokens

    def take_for_text(self, text: str) -> list[TokenInfo]:
        """Remove and return the tokens of `text`, the next text; all waiting tokens if its bytes are not found."""
        wanted = text.encode("utf-8", "surrogatepass")
        # The bytes of token n begin at `starts[n]` and end at `starts[n + 1]`.
        starts = [0, *accumulate(len(token.utf8_bytes) for token in self._pending)]
        begin = b"".join(bytes(token.utf8_bytes) for token in self._pending).find(wanted)
        end = begin + len(wanted)
        if begin < 0:
            begin = 0
            end = starts[-1]
        # The first token that ends behind the begin, and the first one that starts at the end or behind it.
        first = bisect_right(starts, begin, 1) - 1
        after = bisect_left(starts, end, first, len(self._pending))
        taken = self._pending[first:after]
        self._pending = self._pending[after:]
        return taken


# -------------------------------------------------------------------------------------- Response


def response_object(
    header: ReplyHeader,
    echo: Mapping[str, Any],
    status: str,
    output: Sequence[Item] = (),
    *,
    usage: TokenUsage | None = None,
    error: Mapping[str, Any] | None = None,
) -> Item:
    """Return the Response object. `echo`: the request fields that it repeats."""
    return {
        **header_fields(header),
        "object": "response",
        "created_at": header.created,
        "completed_at": int(time.time()) if status == COMPLETED else None,
        "status": status,
        "output": list(output),
        "usage": usage and usage_fields(usage),
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
        **echo,
    }


def status_of(reason: FinishReason | None) -> str:
    return INCOMPLETE if reason is FinishReason.LENGTH else COMPLETED


def usage_fields(usage: TokenUsage) -> Item:
    fields = openai_usage(usage, "input_tokens", "output_tokens")
    fields["input_tokens_details"]["cache_write_tokens"] = 0
    return fields
