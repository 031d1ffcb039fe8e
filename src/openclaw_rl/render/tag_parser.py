"""Parse replies with tags around reasoning and tool calls: all families except gpt-oss."""

from __future__ import annotations

from enum import Enum, auto

from openclaw_rl.render.reply_parser import Delta, Parser, held_back
from openclaw_rl.render.tool_calls import CallReader

Think = tuple[str, str]
"""Opening and closing tag of reasoning."""


class _State(Enum):
    BEGIN = auto()  # so far only white space or a prefix of <think>
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class MarkedParser(Parser):
    """Tag parser. `thinking`: the prompt ends inside reasoning. `reader`: call format; None without tools.

    `hidden`: special tokens that are dropped wherever they have no meaning. A call is held back until it is valid;
    a malformed call becomes content, verbatim except for special tokens.
    """

    def __init__(
        self, think: Think, *, thinking: bool, reader: CallReader | None, hidden: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._think, self._end_think = think
        self._reader = reader
        self._hidden = hidden
        self._openers = reader.openers if reader else ()
        self._marks = tuple(dict.fromkeys([*self._openers, *hidden]))
        self._firsts = frozenset(m[0] for m in self._marks)
        self._state = _State.BEGIN
        self._main = _State.REASONING if thinking else _State.CONTENT
        self._held = ""
        self._gap = ""  # white space before the current call
        self._trim = thinking  # drop newlines at the start of reasoning and after it
        self._fresh = True  # so far only reasoning and calls
        self._closer = ""  # optional closing tag of the call that was just read

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.REASONING

    def push(self, text: str) -> Delta:
        if self._passes(text):
            self._content.append(text)
            return Delta(text)
        self._held += text
        while self._step():
            pass
        return self._take()

    def _passes(self, text: str) -> bool:
        """Fast path: whether `text` is plain content without any tag, as most text of a reply is."""
        idle = self._state is _State.CONTENT and not (self._held or self._trim or self._fresh)
        return (
            idle
            and bool(text)
            and self._firsts.isdisjoint(text)
            and not (self._reader is not None and text[-1].isspace())
        )

    def finish(self) -> Delta:
        while self._state is _State.CALL:
            self._no_call(1)
            while self._step():
                pass
        if self._state is _State.CONTENT and (self._new.calls or self.calls) and not self._between(self._held):
            pass  # white space after the last call
        else:
            self._state = self._main if self._state is _State.BEGIN else self._state
            self._emit(self._held)
        self._held = ""
        return self._take()

    def _emit(self, text: str) -> None:
        if self._trim:
            text = text.lstrip("\n")
        if text:
            self._trim = False
            self._fresh = self._fresh and (self._state is _State.REASONING or not text.strip())
            self._say(text, reasoning=self._state is _State.REASONING)

    def _step(self) -> bool:
        """Run one transition of the state machine; False if more text is needed."""
        if self._state is _State.BEGIN:
            return self._begin()
        if self._state is _State.REASONING:
            return self._reason()
        if self._state is _State.CONTENT and self._closer:
            return self._after_call()
        if self._state is _State.CONTENT:
            return self._at_start() if self._fresh and self._reader and self._reader.at_start else self._upto_mark()
        return self._call()

    def _begin(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(self._think):
            self._held, self._state, self._trim = start[len(self._think) :], _State.REASONING, True
            return True
        if self._think.startswith(start):
            return False
        self._state = self._main
        return True

    def _reason(self) -> bool:
        """Emit the reasoning before its closing tag; newlines before the tag belong to the tag."""
        at = self._held.find(self._end_think)
        end = at if at >= 0 else len(self._held) - held_back(self._held, (self._end_think,))
        kept = len(self._held[:end].rstrip("\n"))
        self._emit(self._held[:kept])
        if at < 0:
            self._held = self._held[kept:]
            return False
        self._held = self._held[at + len(self._end_think) :]
        self._state, self._trim = _State.CONTENT, True
        return True

    def _between(self, text: str) -> str:
        """Return `text` without leading white space and separators between calls."""
        loose = self._reader.between if self._reader and (self._new.calls or self.calls) else ""
        while (shorter := text.lstrip().lstrip(loose or None)) != text:
            text = shorter
        return text

    def _after_call(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(self._closer):
            self._held = start[len(self._closer) :]
        elif self._closer.startswith(start):
            return False
        self._closer = ""
        return True

    def _at_start(self) -> bool:
        assert self._reader is not None
        start = self._between(self._held)
        if not start:
            return False
        if start.startswith(self._reader.at_start):
            self._state, self._gap, self._held = _State.CALL, self._held[: -len(start)], start
            return True
        return self._upto_mark()

    def _upto_mark(self) -> bool:
        """Emit the text before the next tag; hold white space before the tag, which may belong to a call."""
        if not self._marks:
            self._emit(self._held)
            self._held = ""
            return False
        places = [(at, -len(m), m) for m in self._marks if (at := self._held.find(m)) >= 0]
        at, _, mark = min(places, default=(-1, 0, ""))
        end = at if at >= 0 else len(self._held) - held_back(self._held, self._marks)
        kept = len(self._held[:end].rstrip()) if self._reader else end
        self._emit(self._held[:kept])
        if at < 0:
            self._held = self._held[kept:]
            return False
        if mark in self._openers:
            self._state, self._gap, self._held = _State.CALL, self._held[kept:at], self._held[at:]
        else:
            self._emit(self._held[kept:at])
            self._held = self._held[at + len(mark) :]
        return True

    def _call(self) -> bool:
        assert self._reader is not None
        found = self._reader.read(self._held)
        if found is None:
            return False
        if not found.calls:
            self._no_call(found.end)
            return True
        self._state, self._gap, self._held = _State.CONTENT, "", self._held[found.end :]
        self._trim, self._fresh, self._closer = False, True, self._reader.closer
        self._call_made(found.calls)
        return True

    def _no_call(self, end: int) -> None:
        """Treat the first `end` characters, at least an opener, as content up to the next tag."""
        opener = next((m for m in self._openers if self._held.startswith(m)), "")
        marks = (self._held.find(m, len(opener), end) for m in self._marks)
        end = max(min([end, *(at for at in marks if at >= 0)]), len(opener))
        said = self._held[len(opener) : end] if opener in self._hidden else self._held[:end]
        gap, self._gap = self._gap, ""
        self._state, self._held = _State.CONTENT, self._held[end:]
        self._fresh = False
        self._emit(gap + said)
