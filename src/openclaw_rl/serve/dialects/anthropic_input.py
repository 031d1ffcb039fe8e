"""Convert Anthropic messages and content blocks to chat messages; read the user and session ids.

One Anthropic message may become several: each tool result is a message of its own, and so is a reminder that the
client puts next to the user's text, because the user did not write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from openclaw_rl.common.client_patterns import LOCAL_COMMAND, SYSTEM_REMINDER, ClientContext
from openclaw_rl.common.images.image_prompt import IMAGE_TYPE
from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.validation import NON_TEXT_PARTS, decode_json, image_placeholder

_is_client_context = ClientContext((SYSTEM_REMINDER, LOCAL_COMMAND))
# Claude Code sends text that the user typed during a run as a system message (to older servers as a reminder).
_TYPED_DURING_RUN = re.compile(r"\s*The user sent a new message")
# Claude Code puts this accounting line before the system prompt; Anthropic's servers remove it too.
_BILLING_PREFIX = "x-anthropic-billing-header:"


class ContentBlock(msgspec.Struct):
    """Content block of any type, with the keys that are used here."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    is_error: bool | None = None
    source: msgspec.Raw = msgspec.Raw(b"")
    tool_name: str | None = None


class _ImageSource(msgspec.Struct):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class _AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[ContentBlock]


_message_decoder = msgspec.json.Decoder(_AnthropicMessage)
_content_decoder = msgspec.json.Decoder(str | list[ContentBlock] | None)
_blocks_decoder: msgspec.json.Decoder[list[ContentBlock]] = msgspec.json.Decoder(list[ContentBlock])
_source_decoder = msgspec.json.Decoder(_ImageSource)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def read_message(raw: bytes, place: str) -> list[dict[str, Any]]:
    """Decode one message to chat messages. Raises `RequestError` that names the block and what was expected."""
    message = decode_json(_message_decoder, raw, place)
    read_blocks = _BLOCK_READERS.get(message.role)
    if read_blocks is None:
        raise field_error(
            f"{place}.role", f"expected user, assistant or system, got {message.role[:40]!r}."
        )
    if isinstance(message.content, str):
        return [_text_message(message.role, message.content)]
    return read_blocks(message.content, f"{place}.content")


def _text_message(role: str, text: str) -> dict[str, Any]:
    is_typed_by_user = role == "system" and _TYPED_DURING_RUN.match(text)
    return {"role": "user" if is_typed_by_user else role, "content": text}


def read_system(raw: bytes) -> list[dict[str, Any]]:
    """Return the system prompt as a list of one message; empty if there is no system prompt."""
    content = decode_json(_content_decoder, raw, "system") if raw else None
    if isinstance(content, list):
        content = "\n".join(
            t for t in _block_texts(content, "system") if not t.startswith(_BILLING_PREFIX)
        )
    return [{"role": "system", "content": content}] if content else []


def _read_user_blocks(blocks: Sequence[ContentBlock], place: str) -> list[dict[str, Any]]:
    """Return the tool results in order, then the text: templates expect results directly after their calls."""
    _require_blocks(blocks, place)
    results: list[dict[str, Any]] = []
    parts: list[str | dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        if block.type == "tool_result":
            results.append(_read_tool_result(block, where))
        else:
            parts.append(_read_image(block, where) or _block_text(block, where))
    runs = groupby(parts, key=_is_context_part)
    return results + [{"role": "user", "content": _join_parts(list(run))} for _, run in runs]


def _is_context_part(part: str | dict[str, Any]) -> bool:
    return isinstance(part, str) and _is_client_context(part)


def _read_system_blocks(blocks: Sequence[ContentBlock], place: str) -> list[dict[str, Any]]:
    _require_blocks(blocks, place)
    return [_text_message("system", "\n".join(_block_texts(blocks, place)))]


def _require_blocks(blocks: Sequence[ContentBlock], place: str) -> None:
    if not blocks:
        raise field_error(place, "expected at least one block, got none.")


def _read_image(block: ContentBlock, place: str) -> dict[str, Any] | None:
    """Return an image block as an image part with a URL (`validation.read_image`); None for other blocks."""
    if block.type != IMAGE_TYPE:
        return None
    source = decode_json(_source_decoder, bytes(block.source) or b"{}", f"{place}.source")
    url = (
        f"data:{source.media_type};base64,{source.data}" if source.type == "base64" else source.url
    )
    return {"type": IMAGE_TYPE, "url": url}


def _join_parts(parts: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return texts as one text, a line each; with images between them as parts, as in the other APIs."""
    if all(isinstance(part, str) for part in parts):
        return "\n".join(str(part) for part in parts)
    joined: list[dict[str, Any]] = []
    for part in parts:
        _append_part(joined, part)
    return joined


def _append_part(joined: list[dict[str, Any]], part: str | dict[str, Any]) -> None:
    """Append a part; a text that follows a text continues it on a new line."""
    if not isinstance(part, str):
        joined.append(part)
    elif joined and "text" in joined[-1]:
        joined[-1]["text"] += f"\n{part}"
    else:
        joined.append({"type": "text", "text": part})


def _read_tool_result(block: ContentBlock, place: str) -> dict[str, Any]:
    if block.tool_use_id is None:
        raise field_error(f"{place}.tool_use_id", "expected the id of a tool_use block.")
    message: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "content": _read_result_content(bytes(block.content), f"{place}.content"),
    }
    if block.is_error:
        message["is_error"] = True
    return message


def _read_result_content(raw: bytes, place: str) -> str | list[dict[str, Any]]:
    content = decode_json(_content_decoder, raw or b"null", place)
    if isinstance(content, str):
        return content
    blocks = content or ()
    return _join_parts([_read_result_part(b, f"{place}[{n}]") for n, b in enumerate(blocks)])


def _read_result_part(block: ContentBlock, place: str) -> str | dict[str, Any]:
    return _read_image(block, place) or image_placeholder(block.type) or _block_text(block, place)


def _read_assistant_blocks(blocks: Sequence[ContentBlock], place: str) -> list[dict[str, Any]]:
    """Merge all blocks into one message, in the form in which the store has this gateway's own replies."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        if block.type == "tool_use":
            calls.append(_read_tool_use(block, where))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            # Only the service that wrote it can read it.
            texts.append(_block_text(block, where))
    return [_assistant_message(texts, thoughts, calls)]


_BLOCK_READERS: Mapping[str, Callable[[Sequence[ContentBlock], str], list[dict[str, Any]]]] = {
    "user": _read_user_blocks,
    "assistant": _read_assistant_blocks,
    "system": _read_system_blocks,
}
"""Role -> reader of the blocks of a message: (blocks, place) -> chat messages."""


def _read_tool_use(block: ContentBlock, place: str) -> dict[str, Any]:
    for key in ("id", "name"):
        if not getattr(block, key):
            raise field_error(f"{place}.{key}", "expected a string that is not empty.")
    raw = bytes(block.input) or b"{}"
    decode_json(_object_decoder, raw, f"{place}.input")
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": raw.decode()},
    }


def _block_texts(blocks: Sequence[ContentBlock], place: str) -> list[str]:
    return [_block_text(block, f"{place}[{index}]") for index, block in enumerate(blocks)]


def _block_text(block: ContentBlock, place: str) -> str:
    """Return a block's text. Raises `RequestError` for blocks that the model cannot read."""
    read_text = _TEXT_READERS.get(block.type)
    if read_text is not None:
        return read_text(block, place)
    what = NON_TEXT_PARTS.get(block.type, f"a block of type {block.type[:40]!r}")
    where = ""
    if block.type == IMAGE_TYPE:
        where = "; images are read in user messages and tool results"
    raise field_error(place, f"got {what}; expected text{where}. Send its text as a text block.")


def _read_text(block: ContentBlock, place: str) -> str:
    if block.text is None:
        raise field_error(f"{place}.text", "expected a string.")
    return block.text


def _read_search_result(block: ContentBlock, place: str) -> str:
    blocks = decode_json(_blocks_decoder, bytes(block.content) or b"[]", place)
    return "\n".join(_block_texts(blocks, place))


def _read_tool_reference(block: ContentBlock, place: str) -> str:
    return f"The tool {block.tool_name} can be called."


_TEXT_READERS: Mapping[str, Callable[[ContentBlock, str], str]] = {
    "text": _read_text,
    "search_result": _read_search_result,
    "tool_reference": _read_tool_reference,
}
"""Type of a block that a model can read -> reader of its text: (block, place) -> text."""


def merge_assistant_messages(
    messages: Sequence[tuple[bytes, dict[str, Any]]],
) -> list[tuple[bytes, dict[str, Any]]]:
    """Merge adjacent assistant messages, which were one reply. Items are (cache key, message)."""
    merged: list[tuple[bytes, dict[str, Any]]] = []
    for is_assistant, group in groupby(messages, key=lambda known: known[1]["role"] == "assistant"):
        run = list(group)
        if is_assistant and len(run) > 1:
            merged.append(_merge_run(run))
        else:
            merged += run
    return merged


def _merge_run(run: Sequence[tuple[bytes, dict[str, Any]]]) -> tuple[bytes, dict[str, Any]]:
    messages = [message for _, message in run]
    texts = [message["content"] or "" for message in messages]
    thoughts = [message.get("reasoning_content", "") for message in messages]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return b"+".join(key for key, _ in run), _assistant_message(texts, thoughts, calls)


def _assistant_message(
    texts: Iterable[str], thoughts: Iterable[str], calls: list[dict[str, Any]]
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if reasoning := "".join(thoughts):
        message["reasoning_content"] = reasoning
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def read_user_id(user_id: str) -> tuple[str, str]:
    """Return (user, session) of `metadata.user_id`, where Claude Code packs both in one of two formats."""
    packed = _unpack_json(user_id) if user_id.startswith("{") else _unpack_joined(user_id)
    return packed or (user_id, "")


def _unpack_json(user_id: str) -> tuple[str, str] | None:
    """Return (user, session) of an object with the ids of account, device and session; None without a session."""
    try:
        fields = _object_decoder.decode(user_id)
    except (msgspec.DecodeError, RecursionError):
        return None
    names = {key: value for key, value in fields.items() if isinstance(value, str)}
    session = names.get("session_id")
    user = names.get("account_uuid") or names.get("device_id", "")
    return (user, session) if session else None


def _unpack_joined(user_id: str) -> tuple[str, str] | None:
    """Return (user, session) of `user_<user>_account_<account>_session_<session>`; None for another text."""
    # In linear time also for long texts, as a pattern is not.
    user, _, rest = user_id.removeprefix("user_").partition("_account_")
    account, _, session = rest.partition("_session_")
    is_joined = user_id.startswith("user_") and user and session
    return (account or user, session) if is_joined else None
