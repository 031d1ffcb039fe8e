"""Convert sampled tokens to what clients see, incrementally: reasoning, content, tool calls and stop strings.

Each model family has its own parser (`families.py`); this module has the parts that they share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from openclaw_rl.render.detokenizer import TextStream


class ToolCall(NamedTuple):
    """A valid tool call. `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str

    def to_openai(self) -> dict[str, Any]:
        """Return the call as in an OpenAI assistant message."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class Delta(NamedTuple):
    """Output that became certain with the last tokens."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def merge_with(self, later: Delta) -> Delta:
        """Return this delta and a later one combined."""
        if not later:
            return self
        return Delta(
            self.content + later.content, self.reasoning + later.reasoning, self.calls + later.calls
        )


def find_first(text: str, marks: Iterable[str], start: int = 0) -> tuple[int, str]:
    """Return the place of the first mark from `start`, and the longest mark there; (-1, "") without one."""
    first = (-1, "")
    for mark in marks:
        at = text.find(mark, start)
        is_earlier = first[0] < 0 or at < first[0]
        is_longer = at == first[0] and len(mark) > len(first[1])
        if at >= 0 and (is_earlier or is_longer):
            first = (at, mark)
    return first


def partial_match_length(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of one of `tags`."""
    best = 0
    for tag in tags:
        at = text.find(tag[0], max(0, len(text) - len(tag) + 1))
        while at >= 0 and not tag.startswith(text[at:]):
            at = text.find(tag[0], at + 1)
        if at >= 0:
            best = max(best, len(text) - at)
    return best


class StopStringFilter:
    """Cut the text before the first stop string; hold back text that may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return (text that is certain, whether a stop string was found)."""
        text = self._buffer + text
        places = [at for at in map(text.find, self._stops) if at >= 0]
        if places:
            self._buffer = ""
            return text[: min(places)], True
        cut = len(text) - partial_match_length(text, self._stops)
        self._buffer = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        rest = self._buffer
        self._buffer = ""
        return rest


class ReplyParser(ABC):
    """Incremental parser: the joined deltas are exactly `content`, `reasoning` and `calls`, however the text is cut.

    A delta is never revoked: text that may still become something else is held back until it is certain.
    """

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self._pending = Delta()

    @property
    @abstractmethod
    def in_reasoning(self) -> bool: ...

    @abstractmethod
    def push(self, text: str) -> Delta: ...

    @abstractmethod
    def finish(self, *, is_cut: bool = False) -> Delta:
        """End the reply: text that was held back becomes content, or a call that needed only its end.

        `is_cut`: the reply reached a limit, so that the model may have meant to write more.
        """

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def to_message(self) -> dict[str, Any]:
        """Return the assistant message delivered so far."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self._reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [call.to_openai() for call in self.calls]
        return message

    def _append_text(self, text: str, *, reasoning: bool) -> None:
        self._pending = self._pending.merge_with(Delta("", text) if reasoning else Delta(text))

    def _append_calls(self, calls: tuple[ToolCall, ...]) -> None:
        self._pending = self._pending.merge_with(Delta("", "", calls))

    def _take_delta(self) -> Delta:
        """Return and record everything since the last call."""
        delta = self._pending
        self._pending = Delta()
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        self.calls += delta.calls
        return delta


class PlainTextParser(ReplyParser):
    """Parser of a text completion: all text is content, also tags of reasoning and calls."""

    @property
    def in_reasoning(self) -> bool:
        return False

    def push(self, text: str) -> Delta:
        self._append_text(text, reasoning=False)
        return self._take_delta()

    def finish(self, *, is_cut: bool = False) -> Delta:
        return self._take_delta()


class ReplyDecoder:
    """Convert response tokens to deltas: detokenization, stop strings and parsing combined."""

    def __init__(
        self, stream: TextStream, parser: ReplyParser, stops: Sequence[str], min_tokens: int = 0
    ) -> None:
        """`min_tokens`: number of tokens in whose text no stop string is searched for."""
        self._stream = stream
        self._min_tokens = min_tokens
        self._stops = StopStringFilter(stops) if stops else None
        self.parser = parser
        # Number of tokens pushed.
        self.token_count = 0
        # Number of tokens up to the one that completed a stop string.
        self.tokens_to_keep: int | None = None
        # Character offset of each token, recorded only with stop strings.
        self._token_starts: list[int] = []
        # Characters pushed; of them, characters outside any stop string.
        self._pushed_chars = self._certain_chars = 0
        self._finished = False

    @property
    def is_stopped(self) -> bool:
        return self.tokens_to_keep is not None

    @property
    def shown_tokens(self) -> int:
        """Number of tokens whose text is certain, up to the one where it ends; excludes those of a stop string."""
        if self._stops is None or (self._finished and not self.is_stopped):
            return self.token_count
        return bisect_left(self._token_starts, self._certain_chars)

    def push(self, ids: Sequence[int]) -> Delta:
        """Return the delta of these tokens; empty after a stop string."""
        seen = self.token_count
        self.token_count = self.token_count + len(ids)
        if self._stops is None:
            return self.parser.push(self._stream.push(ids))
        if self.is_stopped:
            return Delta()
        text = ""
        for n, i in enumerate(ids):
            new = self._stream.push((i,))
            sure, hit = self._stops.push(new) if seen + n >= self._min_tokens else (new, False)
            text += sure
            self._token_starts.append(self._pushed_chars)
            self._pushed_chars = self._pushed_chars + len(new)
            self._certain_chars = self._certain_chars + len(sure)
            if hit:
                self.tokens_to_keep = seen + n + 1
                break
        return self.parser.push(text)

    def finish(self, *, is_cut: bool = False) -> Delta:
        """End the reply: return all text that was held back, and nothing after a stop string. `is_cut`: by a limit."""
        rest = ""
        self._finished = True
        if not self.is_stopped:
            rest = self._stream.flush()
            if self._stops is not None:
                sure, hit = self._stops.push(rest)
                rest = sure if hit else sure + self._stops.flush()
        return self.parser.push(rest).merge_with(self.parser.finish(is_cut=is_cut))
