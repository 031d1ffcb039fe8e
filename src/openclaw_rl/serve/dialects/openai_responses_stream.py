"""Stream encoder of the Responses API."""

from __future__ import annotations

from typing import Any

from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import ChatRequest, ReplyEnd, ReplyHeader, StreamPart
from openclaw_rl.serve.dialects import openai_responses_output as out
from openclaw_rl.serve.dialects.base import SSE_COMMENT, sse_event, token_entry
from openclaw_rl.serve.dialects.openai_responses_output import (
    Item,
    ItemIdGenerator,
    PendingTokens,
    ResponseOptions,
)


class _OpenItem:
    """Item that text is being appended to: a message or the reasoning."""

    def __init__(self, kind: str, id_: str, index: int) -> None:
        self.kind = kind
        self.id = id_
        self.index = index
        self.event = "response.output_text" if kind == "message" else "response.reasoning_text"
        self.texts: list[str] = []
        self.logprobs: list[Item] = []

    @property
    def position_fields(self) -> Item:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}


class ResponsesStreamEncoder:
    """Stream encoder of one reply.

    Each item is done before the next one is added, as clients expect. Agents start their tools at the
    `output_item.done` of a call, so calls wait for the end of the reply: by then the exchange is durable.
    """

    def __init__(self, header: ReplyHeader, request: ChatRequest) -> None:
        extra: ResponseOptions = request.dialect_state
        self._header = header
        self._options = extra
        self._ids = ItemIdGenerator(header.id)
        # By output_index; the open item in its initial state.
        self._items: list[Item] = []
        self._pending_calls: list[ToolCall] = []
        self._current_item: _OpenItem | None = None
        self._pending_tokens = PendingTokens()
        self._sequence_number = 0

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return the events of one part; with its end also the complete Response object."""
        events = []
        if self._sequence_number == 0:
            events.append(self._created_events())
        self._pending_tokens.add(part.tokens)
        if part.delta.reasoning:
            events.append(self._text_delta("reasoning", part.delta.reasoning))
        if part.delta.content:
            events.append(self._text_delta("message", part.delta.content))
        self._pending_calls += part.delta.calls
        if part.end is not None:
            events.append(self._finish_events(part.end))
        return b"".join(events)

    def encode_ping(self) -> bytes:
        """See `StreamEncoder`."""
        return SSE_COMMENT

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return `response.failed`, then `error` for clients that do not read the status of the Response."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"code": "server_error", "message": message}
        failed = out.response_object(
            self._header, self._options.echo, "failed", self._items, error=error
        )
        flat = {"code": code, "message": message, "param": None}
        return self._sse_event("response.failed", response=failed) + self._sse_event(
            "error", **flat, error=flat | {"type": kind}
        )

    def _sse_event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence_number
        self._sequence_number = self._sequence_number + 1
        return sse_event(kind, {"sequence_number": number, **fields})

    def _created_events(self) -> bytes:
        begun = out.response_object(self._header, self._options.echo, out.IN_PROGRESS)
        return self._sse_event("response.created", response=begun) + self._sse_event(
            "response.in_progress", response=begun
        )

    def _text_delta(self, kind: str, text: str) -> bytes:
        before = b""
        if self._current_item is None or self._current_item.kind != kind:
            before = self._close_item() + self._open_item(kind)
        item = self._current_item
        assert item is not None
        item.texts.append(text)
        fields: Item = item.position_fields | {"delta": text}
        tokens = self._pending_tokens.take_for_text(text)
        if kind == "message":
            fields["logprobs"] = [token_entry(t) for t in tokens]
            item.logprobs += fields["logprobs"]
        return before + self._sse_event(f"{item.event}.delta", **fields)

    def _open_item(self, kind: str) -> bytes:
        id_prefix = "msg" if kind == "message" else "rs"
        opened = _OpenItem(kind, self._ids.next_id(id_prefix), len(self._items))
        item = self._text_item(opened, None, out.IN_PROGRESS)
        part = self._text_part(opened, "")
        self._current_item = opened
        self._items.append(item)
        return self._sse_event(
            "response.output_item.added", output_index=opened.index, item=item
        ) + self._sse_event("response.content_part.added", **opened.position_fields, part=part)

    def _text_item(self, opened: _OpenItem, text: str | None, status: str) -> Item:
        if opened.kind == "reasoning":
            return out.reasoning_item(opened.id, text, status, seal=self._options.seal)
        return out.message_item(
            opened.id, [] if text is None else [self._text_part(opened, text)], status
        )

    @staticmethod
    def _text_part(opened: _OpenItem, text: str) -> Item:
        if opened.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return out.text_part(text, opened.logprobs)

    def _close_item(self, status: str = out.COMPLETED) -> bytes:
        opened = self._current_item
        self._current_item = None
        if opened is None:
            return b""
        text = "".join(opened.texts)
        item = self._items[opened.index] = self._text_item(opened, text, status)
        fields: Item = opened.position_fields | {"text": text}
        if opened.kind == "message":
            fields["logprobs"] = opened.logprobs
        return (
            self._sse_event(f"{opened.event}.done", **fields)
            + self._sse_event(
                "response.content_part.done",
                **opened.position_fields,
                part=self._text_part(opened, text),
            )
            + self._sse_event("response.output_item.done", output_index=opened.index, item=item)
        )

    def _tool_call_events(self, call: ToolCall) -> bytes:
        item = out.call_item(call.to_openai(), self._ids, self._options.origins)
        index = len(self._items)
        place = {"item_id": item["id"], "output_index": len(self._items)}
        self._items.append(item)
        key, event = {
            "function_call": ("arguments", "response.function_call_arguments"),
            "custom_tool_call": ("input", "response.custom_tool_call_input"),
        }.get(item["type"], ("", ""))
        begun = item | {"status": out.IN_PROGRESS} | ({key: ""} if key else {})
        events = self._sse_event("response.output_item.added", output_index=index, item=begun)
        if key:
            events += self._sse_event(f"{event}.delta", **place, delta=item[key])
            name = {"name": item["name"]} if key == "arguments" else {}
            events += self._sse_event(f"{event}.done", **place, **{key: item[key]}, **name)
        return events + self._sse_event("response.output_item.done", output_index=index, item=item)

    def _finish_events(self, end: ReplyEnd) -> bytes:
        status = out.status_of(end.finish_reason)
        events = b""
        if not self._items and not self._pending_calls:
            events = self._open_item("message")
        events += self._close_item(out.COMPLETED if self._pending_calls else status)
        events += b"".join(map(self._tool_call_events, self._pending_calls))
        whole = out.response_object(
            self._header, self._options.echo, status, self._items, usage=end.usage
        )
        return events + self._sse_event(f"response.{status}", response=whole)
