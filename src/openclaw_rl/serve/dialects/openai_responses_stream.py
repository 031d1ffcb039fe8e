"""Stream encoder of the Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import Ask, End, Opening, Part, TokenInfo
from openclaw_rl.serve.dialects import openai_responses_output as out
from openclaw_rl.serve.dialects.base import token_entry
from openclaw_rl.serve.dialects.openai_responses_output import Extra, Item, ItemIds, Tokens
from openclaw_rl.store.rows import to_json


class _Open:
    """Item that text is being appended to: a message or the reasoning."""

    def __init__(self, kind: str, id_: str, index: int) -> None:
        self.kind, self.id, self.index = kind, id_, index
        self.event = "response.output_text" if kind == "message" else "response.reasoning_text"
        self.words: list[str] = []
        self.logprobs: list[Item] = []

    @property
    def place(self) -> Item:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}


class ResponsesStream:
    """Stream encoder of one reply.

    A tool call is streamed as soon as it is complete, but agents start their tools at its `output_item.done`, which
    therefore waits for the end of the reply: by then the exchange is durable.
    """

    def __init__(self, opening: Opening, ask: Ask) -> None:
        extra: Extra = ask.extra
        self._opening, self._ask, self._extra = opening, ask, extra
        self._ids = ItemIds(opening.id)
        self._items: list[Item] = []  # by output_index; the open item in its initial state
        self._called: list[int] = []  # output indices of calls whose `output_item.done` is pending
        self._open: _Open | None = None
        self._tokens = Tokens()
        self._number = 0

    def part(self, part: Part, choice: int = 0) -> bytes:
        """Return the events of one part; with its end also the complete Response object."""
        events = [self._begin()] if self._number == 0 else []
        self._tokens.add(part.tokens)
        if part.delta.reasoning:
            events.append(self._say("reasoning", part.delta.reasoning))
        if part.delta.content:
            events.append(self._say("message", part.delta.content))
        events += [self._call(call) for call in part.delta.calls]
        if part.end is not None:
            events.append(self._end(part.end))
        return b"".join(events)

    def broken(self, status: int, message: str, code: str) -> bytes:
        """Return `response.failed`, then `error` for clients that do not read the status of the Response."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"code": "server_error", "message": message}
        failed = out.response(self._opening, self._extra.echo, "failed", self._items, error=error)
        flat = {"code": code, "message": message, "param": None}
        return self._event("response.failed", response=failed) + self._event(
            "error", **flat, error=flat | {"type": kind}
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = to_json({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _begin(self) -> bytes:
        begun = out.response(self._opening, self._extra.echo, out.IN_PROGRESS)
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def _say(self, kind: str, words: str) -> bytes:
        before = b"" if self._open is not None and self._open.kind == kind else self._close() + self._open_item(kind)
        item = self._open
        assert item is not None
        item.words.append(words)
        fields: Item = item.place | {"delta": words}
        told = self._tokens.take(words)
        if kind == "message":
            fields["logprobs"] = self._told(item, told)
        return before + self._event(f"{item.event}.delta", **fields)

    def _told(self, item: _Open, tokens: Sequence[TokenInfo]) -> list[Item]:
        entries = [token_entry(t) for t in tokens]
        item.logprobs += entries
        return entries

    def _open_item(self, kind: str) -> bytes:
        opened = _Open(kind, self._ids.next("msg" if kind == "message" else "rs"), len(self._items))
        item, part = self._text_item(opened, None, out.IN_PROGRESS), self._text_part(opened, "")
        self._open = opened
        self._items.append(item)
        return self._event("response.output_item.added", output_index=opened.index, item=item) + self._event(
            "response.content_part.added", **opened.place, part=part
        )

    def _text_item(self, opened: _Open, text: str | None, status: str) -> Item:
        if opened.kind == "reasoning":
            return out.reasoning_item(opened.id, text, status, seal=self._extra.seal)
        return out.message_item(opened.id, [] if text is None else [self._text_part(opened, text)], status)

    @staticmethod
    def _text_part(opened: _Open, text: str) -> Item:
        if opened.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return out.text_part(text, opened.logprobs)

    def _close(self, status: str = out.COMPLETED) -> bytes:
        opened, self._open = self._open, None
        if opened is None:
            return b""
        text = "".join(opened.words)
        item = self._items[opened.index] = self._text_item(opened, text, status)
        fields: Item = opened.place | {"text": text}
        if opened.kind == "message":
            fields["logprobs"] = opened.logprobs
        return (
            self._event(f"{opened.event}.done", **fields)
            + self._event("response.content_part.done", **opened.place, part=self._text_part(opened, text))
            + self._event("response.output_item.done", output_index=opened.index, item=item)
        )

    def _call(self, call: ToolCall) -> bytes:
        events = self._close()
        item = out.call_item(call.wire(), self._ids, self._extra.origins)
        index, place = len(self._items), {"item_id": item["id"], "output_index": len(self._items)}
        self._items.append(item)
        self._called.append(index)
        key, event = {
            "function_call": ("arguments", "response.function_call_arguments"),
            "custom_tool_call": ("input", "response.custom_tool_call_input"),
        }.get(item["type"], ("", ""))
        begun = item | {"status": out.IN_PROGRESS} | ({key: ""} if key else {})
        events += self._event("response.output_item.added", output_index=index, item=begun)
        if key:
            events += self._event(f"{event}.delta", **place, delta=item[key])
            events += self._event(f"{event}.done", **place, **{key: item[key]}, **_named(item))
        return events

    def _end(self, end: End) -> bytes:
        status = out.status_of(end.reason)
        events = b"" if self._items else self._open_item("message")
        events += self._close(status)
        for index in self._called:
            events += self._event("response.output_item.done", output_index=index, item=self._items[index])
        whole = out.response(self._opening, self._extra.echo, status, self._items, usage=end.usage)
        return events + self._event(f"response.{status}", response=whole)


def _named(item: Item) -> Item:
    return {"name": item["name"]} if item["type"] == "function_call" else {}
