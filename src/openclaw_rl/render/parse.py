"""The model's words to what clients see: reasoning, content, tool calls; stop strings; all of it incrementally.

The format of tool calls is Hermes' and Qwen's: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from openclaw_rl.render.detok import TextStream

_ids = random.Random(random.SystemRandom().getrandbits(256))  # ids only have to be unique
THINK, END_THINK, CALL, END_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"


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


class _CallBody(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_call_body = msgspec.json.Decoder(_CallBody)


def read_call(body: str) -> ToolCall | None:
    """A tool call from the text between the tags; None when it is no object with a name and an arguments object."""
    try:
        found = _call_body.decode(body.encode("utf-8", "surrogatepass"))
        arguments = bytes(found.arguments)
        value = msgspec.json.decode(arguments)
        if isinstance(value, str):  # some models quote the arguments once more
            arguments = value.encode("utf-8", "surrogatepass")
            value = msgspec.json.decode(arguments)
        text = arguments.decode("utf-8")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not found.name or not isinstance(value, dict):
        return None
    return ToolCall("call_" + f"{_ids.getrandbits(96):024x}", found.name, text)


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


class _State(Enum):
    BEGIN = auto()  # only white space, or the beginning of <think>, so far
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class OutputParser:
    """Text in, deltas out. Joined, the deltas are exactly `content`, `reasoning` and `calls`.

    `thinking`: the prompt already opened <think>. `tools`: tool calls are looked for. A call is held back until its
    closing tag proves it valid; a malformed one is content, verbatim.
    """

    def __init__(self, *, thinking: bool, tools: bool) -> None:
        self._state = _State.BEGIN
        self._main = _State.REASONING if thinking else _State.CONTENT
        self._tools = tools
        self._held = ""
        self._gap = ""  # white space before a call that is being read
        self._trim = thinking  # line ends are dropped at the start of reasoning and after it
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self._new_content: list[str] = []
        self._new_reasoning: list[str] = []
        self._new_calls: list[ToolCall] = []

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.REASONING

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def push(self, text: str) -> Delta:
        idle = self._state is _State.CONTENT and not self._held and not self._trim
        if idle and text and "<" not in text and not (self._tools and text[-1].isspace()):
            self._content.append(text)
            return Delta(text)
        self._held += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> Delta:
        """The end of the reply: what was held back is text."""
        if self._state is _State.CALL:
            self._emit(self._gap + CALL + self._held)
        elif self._state is _State.CONTENT and self.calls and not self._held.strip():
            pass  # white space after the last call
        else:
            self._state = self._main if self._state is _State.BEGIN else self._state
            self._emit(self._held)
        self._held = self._gap = ""
        return self._take()

    def message(self) -> dict[str, Any]:
        """The assistant message as delivered so far."""
        content = self.content
        out: dict[str, Any] = {"role": "assistant", "content": content if content or not self.calls else None}
        if self._reasoning:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = [c.wire() for c in self.calls]
        return out

    def _take(self) -> Delta:
        if not (self._new_content or self._new_reasoning or self._new_calls):
            return Delta()
        delta = Delta("".join(self._new_content), "".join(self._new_reasoning), tuple(self._new_calls))
        self._content += self._new_content
        self._reasoning += self._new_reasoning
        self.calls += self._new_calls
        self._new_content, self._new_reasoning, self._new_calls = [], [], []
        return delta

    def _emit(self, text: str) -> None:
        if self._trim:
            text = text.lstrip("\n")
        if text:
            self._trim = False
            (self._new_reasoning if self._state is _State.REASONING else self._new_content).append(text)

    def _step(self) -> bool:
        """One step of the machine; False when more text is needed."""
        if self._state is _State.BEGIN:
            return self._begin()
        if self._state is _State.REASONING:
            return self._upto(END_THINK)
        if self._state is _State.CONTENT:
            return self._upto(CALL) if self._tools else self._plain()
        return self._call()

    def _begin(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(THINK):
            self._held, self._state, self._trim = start[len(THINK) :], _State.REASONING, True
            return True
        if THINK.startswith(start):
            return False
        self._state = self._main
        return True

    def _plain(self) -> bool:
        self._emit(self._held)
        self._held = ""
        return False

    def _upto(self, tag: str) -> bool:
        """Give out the text before `tag`; white space before it waits, for it belongs to the tag."""
        at = self._held.find(tag)
        end = at if at >= 0 else len(self._held) - held_back(self._held, (tag,))
        kept = len(self._held[:end].rstrip("\n" if tag is END_THINK else None))
        self._emit(self._held[:kept])
        if at < 0:
            self._held = self._held[kept:]
            return False
        gap, self._held = self._held[kept:at], self._held[at + len(tag) :]
        if tag is END_THINK:
            self._state, self._trim = _State.CONTENT, True
        else:
            self._state, self._gap = _State.CALL, gap
        return True

    def _call(self) -> bool:
        at = self._held.find(END_CALL)
        if at < 0:
            return False
        body, self._held = self._held[:at], self._held[at + len(END_CALL) :]
        self._state = _State.CONTENT
        if (call := read_call(body)) is not None:
            self._trim = False
            self._new_calls.append(call)
        else:
            self._emit(f"{self._gap}{CALL}{body}{END_CALL}")
        self._gap = ""
        return True


class ReplyText:
    """Response tokens in, deltas out: detokenising, stop strings and parsing in one."""

    def __init__(self, stream: TextStream, *, thinking: bool, tools: bool, stops: Sequence[str]) -> None:
        self._stream = stream
        self._stops = StopStrings(stops) if stops else None
        self.parser = OutputParser(thinking=thinking, tools=tools)
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
