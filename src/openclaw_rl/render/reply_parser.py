"""The model's words to what clients see: reasoning, content, tool calls; stop strings; all of it incrementally.

What a family of models writes is read by its parser (`families.py`); here is what all of them share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from openclaw_rl.render.detokenizer import TextStream


class ToolCall(NamedTuple):
    """One valid call. `arguments` is the model's own JSON text."""

    id: str
    name: str
    arguments: str

    def wire(self) -> dict[str, Any]:
        """As in an OpenAI assistant message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class Delta(NamedTuple):
    """What became certain with the last tokens."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def then(self, later: Delta) -> Delta:
        """This one and a later one as one."""
        if not later:
            return self
        return Delta(self.content + later.content, self.reasoning + later.reasoning, self.calls + later.calls)


def held_back(text: str, tags: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the beginning of one of `tags`."""
    best = 0
    for tag in tags:
        at = text.find(tag[0], max(0, len(text) - len(tag) + 1))
        while at >= 0 and not tag.startswith(text[at:]):
            at = text.find(tag[0], at + 1)
        if at >= 0:
            best = max(best, len(text) - at)
    return best


class StopStrings:
    """Cuts the text before the first stop string; holds back what could become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is certain, whether a stop string was found)."""
        text = self._held + text
        found = [at for at in (text.find(s) for s in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        cut = len(text) - held_back(text, self._stops)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Parser(ABC):
    """Text in, deltas out: joined, the deltas are exactly `content`, `reasoning` and `calls`, however the text is cut.

    Nothing that was given out is ever taken back: what may still become something else is held until it is certain.
    """

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self._new = Delta()

    @property
    @abstractmethod
    def in_reasoning(self) -> bool: ...

    @abstractmethod
    def push(self, text: str) -> Delta: ...

    @abstractmethod
    def finish(self) -> Delta:
        """The end of the reply: what was held back is text, or a call that only waited for its end."""

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def message(self) -> dict[str, Any]:
        """The assistant message as delivered so far."""
        content = self.content
        out: dict[str, Any] = {"role": "assistant", "content": content if content or not self.calls else None}
        if self._reasoning:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = [c.wire() for c in self.calls]
        return out

    def _say(self, text: str, *, reasoning: bool) -> None:
        self._new = self._new.then(Delta("", text) if reasoning else Delta(text))

    def _call_made(self, calls: tuple[ToolCall, ...]) -> None:
        self._new = self._new.then(Delta("", "", calls))

    def _take(self) -> Delta:
        """Everything since the last time."""
        delta, self._new = self._new, Delta()
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        self.calls += delta.calls
        return delta


class ReplyText:
    """Response tokens in, deltas out: detokenising, stop strings and parsing in one."""

    def __init__(self, stream: TextStream, parser: Parser, stops: Sequence[str]) -> None:
        self._stream = stream
        self._stops = StopStrings(stops) if stops else None
        self.parser = parser
        self.tokens = 0  # pushed so far
        self.kept: int | None = None  # tokens up to the one that completed a stop string
        self._starts: list[int] = []  # character at which each token's text begins, where there are stop strings
        self._length = self._sure = 0  # characters pushed; of them, those that no stop string can take back
        self._over = False

    @property
    def stopped(self) -> bool:
        return self.kept is not None

    @property
    def shown(self) -> int:
        """Tokens whose text is certain, up to the one in which the text ends: those of a stop string are not."""
        if self._stops is None or (self._over and not self.stopped):
            return self.tokens
        return bisect_left(self._starts, self._sure)

    def push(self, ids: Sequence[int]) -> Delta:
        """After a stop string was found, nothing more comes out."""
        seen, self.tokens = self.tokens, self.tokens + len(ids)
        if self._stops is None:
            return self.parser.push(self._stream.push(ids))
        if self.stopped:
            return Delta()
        text = ""
        for n, i in enumerate(ids):
            new = self._stream.push((i,))
            sure, hit = self._stops.push(new)
            text += sure
            self._starts.append(self._length)
            self._length, self._sure = self._length + len(new), self._sure + len(sure)
            if hit:
                self.kept = seen + n + 1
                break
        return self.parser.push(text)

    def finish(self) -> Delta:
        """The end: everything that was held back, and nothing behind a stop string."""
        rest, self._over = "", True
        if not self.stopped:
            rest = self._stream.flush()
            if self._stops is not None:
                sure, hit = self._stops.push(rest)
                rest = sure if hit else sure + self._stops.flush()
        return self.parser.push(rest).then(self.parser.finish())
