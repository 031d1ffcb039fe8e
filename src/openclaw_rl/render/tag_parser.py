"""Parse replies with tags around reasoning and tool calls: all families except gpt-oss."""

from __future__ import annotations

import re
from enum import Enum, auto

from openclaw_rl.render.reply_parser import (
    Delta,
    ReplyParser,
    ToolCall,
    find_first,
    partial_match_length,
)
from openclaw_rl.render.tool_calls import CallMatch, CallReader

ThinkTags = tuple[str, str]
"""Opening and closing tag of reasoning."""


class _ParserState(Enum):
    BEGIN = auto()  # so far only white space or a prefix of <think>
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class TagParser(ReplyParser):
    """Tag parser. `thinking`: the prompt ends inside reasoning. `reader`: call format; None without tools.

    `hidden`: special tokens that are dropped wherever they have no meaning. A call is held back until it is valid;
    a malformed call becomes content, verbatim except for special tokens.
    """

    def __init__(
        self,
        think: ThinkTags,
        *,
        thinking: bool,
        reader: CallReader | None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._open_think, self._close_think = think
        self._reader = reader
        self._hidden = hidden
        self._openers = reader.openers if reader else ()
        self._tags = tuple(dict.fromkeys([*self._openers, *hidden]))
        # A longer tag comes before its beginning.
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._tag_pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._tag_first_chars = frozenset(m[0] for m in self._tags)
        self._state = _ParserState.BEGIN
        self._initial_state = _ParserState.REASONING if thinking else _ParserState.CONTENT
        self._buffer = ""
        # White space before the current call.
        self._space_before_call = ""
        # Drop newlines at the start of reasoning and after it.
        self._trim_newlines = thinking
        # So far only reasoning and calls.
        self._no_content_yet = True
        # Optional closing tag of the call that was just read.
        self._optional_closer = ""
        # Characters at the start of the buffer that are white space, or separators between calls.
        self._held_chars = 0

    @property
    def in_reasoning(self) -> bool:
        return self._state is _ParserState.REASONING

    def push(self, text: str) -> Delta:
        if self._is_plain_content(text):
            self._content.append(text)
            return Delta(text)
        # A string with one reference grows in place.
        buffer = self._buffer
        self._buffer = ""
        buffer += text
        self._buffer = buffer
        del buffer
        while self._step():
            pass
        return self._take_delta()

    def _is_plain_content(self, text: str) -> bool:
        """Fast path: whether `text` is plain content without any tag, as most text of a reply is."""
        idle = self._state is _ParserState.CONTENT and not (
            self._buffer or self._trim_newlines or self._no_content_yet
        )
        held_back = self._reader is not None and text[-1:].isspace()
        return idle and bool(text) and self._tag_first_chars.isdisjoint(text) and not held_back

    def finish(self, *, is_cut: bool = False) -> Delta:
        while self._state is _ParserState.CALL:
            self._finish_call(is_cut=is_cut)
        if self._state is _ParserState.REASONING:
            self._take_calls_of_open_reasoning(is_cut=is_cut)
        if self._state is _ParserState.BEGIN:
            self._state = self._initial_state
        has_calls = bool(self._pending.calls or self.calls)
        is_after_call = has_calls and self._state is _ParserState.CONTENT
        # Drop white space after the last call.
        if not is_after_call or self._strip_separators(self._buffer):
            self._emit_text(self._buffer)
        self._buffer = ""
        return self._take_delta()

    def _finish_call(self, *, is_cut: bool) -> None:
        """Take the call of which only the end is missing, or treat it as content; then read what follows."""
        assert self._reader is not None
        block = self._reader.read_rest(self._buffer, is_cut=is_cut)
        if block is not None and block.calls:
            self._take_calls(block)
        else:
            self._reject_call(1)
        while self._step():
            pass

    def _emit_text(self, text: str) -> None:
        if self._trim_newlines:
            text = text.lstrip("\n")
        if text:
            self._trim_newlines = False
            self._no_content_yet = self._no_content_yet and (
                self._state is _ParserState.REASONING or not text.strip()
            )
            self._append_text(text, reasoning=self._state is _ParserState.REASONING)

    def _step(self) -> bool:
        """Run one transition of the state machine; False if more text is needed."""
        if self._state is _ParserState.BEGIN:
            return self._read_start()
        if self._state is _ParserState.REASONING:
            return self._read_reasoning()
        if self._state is _ParserState.CALL:
            return self._read_call()
        if self._optional_closer:
            return self._skip_closer()
        if self._no_content_yet and self._reader is not None and self._reader.at_start:
            return self._read_first_content()
        return self._read_content()

    def _read_start(self) -> bool:
        start = self._buffer.lstrip()
        if start.startswith(self._open_think):
            self._buffer = start[len(self._open_think) :]
            self._state = _ParserState.REASONING
            self._trim_newlines = True
            return True
        if self._open_think.startswith(start):
            return False
        self._state = self._initial_state
        return True

    def _read_reasoning(self) -> bool:
        """Emit the reasoning before its closing tag; newlines before the tag belong to the tag."""
        at = self._buffer.find(self._close_think)
        end = (
            at
            if at >= 0
            else len(self._buffer) - partial_match_length(self._buffer, (self._close_think,))
        )
        length = len(self._buffer[:end].rstrip("\n"))
        self._emit_text(self._buffer[:length])
        if at < 0:
            self._buffer = self._buffer[length:]
            return False
        self._buffer = self._buffer[at + len(self._close_think) :]
        self._state = _ParserState.CONTENT
        self._trim_newlines = True
        return True

    def _strip_separators(self, text: str) -> str:
        """Return `text` without leading white space and separators between calls."""
        is_after_call = bool(self._pending.calls or self.calls)
        loose = self._reader.separators if self._reader and is_after_call else ""
        held = re.match(rf"[\s{re.escape(loose)}]*", text)
        return text if held is None else text[held.end() :]

    def _skip_closer(self) -> bool:
        start = self._buffer.lstrip()
        if start.startswith(self._optional_closer):
            self._buffer = start[len(self._optional_closer) :]
        elif self._optional_closer.startswith(start):
            return False
        self._optional_closer = ""
        return True

    def _read_first_content(self) -> bool:
        assert self._reader is not None
        start = self._strip_separators(self._buffer[self._held_chars :])
        if not start:
            self._held_chars = len(self._buffer)
            return False
        self._held_chars = 0
        if not start.startswith(self._reader.at_start):
            return self._read_content()
        self._begin_call()
        self._space_before_call = self._buffer[: -len(start)]
        self._buffer = start
        return True

    def _read_content(self) -> bool:
        """Emit the text before the next tag; hold white space before the tag, which may belong to a call."""
        if not self._tags:
            self._emit_text(self._buffer)
            self._buffer = ""
            return False
        held = self._held_chars
        self._held_chars = 0
        tag = self._tag_pattern.search(self._buffer, held)
        end = len(self._buffer) - partial_match_length(self._buffer, self._tags)
        if tag is not None:
            end = tag.start()
        length = end
        if self._reader is not None:
            text = self._buffer[held:end].rstrip()
            length = held + len(text) if text else 0
        self._emit_text(self._buffer[:length])
        if tag is None:
            self._buffer = self._buffer[length:]
            self._held_chars = end - length
            return False
        if tag[0] in self._openers:
            self._begin_call()
            self._space_before_call = self._buffer[length:end]
            self._buffer = self._buffer[end:]
        else:
            self._emit_text(self._buffer[length:end])
            self._buffer = self._buffer[tag.end() :]
        return True

    def _begin_call(self) -> None:
        assert self._reader is not None
        self._state = _ParserState.CALL
        self._reader.begin()

    def _read_call(self) -> bool:
        assert self._reader is not None
        block = self._reader.read(self._buffer)
        if block is None:
            return False
        if not block.calls:
            self._reject_call(block.end)
            return True
        self._take_calls(block)
        return True

    def _take_calls(self, block: CallMatch) -> None:
        assert self._reader is not None
        self._state = _ParserState.CONTENT
        self._space_before_call = ""
        self._buffer = self._buffer[block.end :]
        self._trim_newlines = False
        self._no_content_yet = True
        self._optional_closer = self._reader.closer
        self._append_calls(block.calls)

    def _take_calls_of_open_reasoning(self, *, is_cut: bool) -> None:
        """Take the calls at the end of reasoning that was never closed; its text stays reasoning."""
        if self._reader is None or not self._openers:
            return
        text = self.reasoning + self._pending.reasoning + self._buffer
        at, _ = find_first(text, self._openers)
        calls: list[ToolCall] = []
        while at >= 0 and text[at:].startswith(self._openers):
            rest = text[at:]
            self._reader.begin()
            block = self._reader.read(rest)
            if block is None:
                block = self._reader.read_rest(rest, is_cut=is_cut)
            if block is None or not block.calls:
                return
            calls += block.calls
            rest = rest[block.end :].lstrip().removeprefix(self._reader.closer).lstrip()
            at = len(text) - len(rest)
        # Text behind the calls shows that they were a draft.
        if calls and not text[at:].strip():
            self._append_calls(tuple(calls))

    def _reject_call(self, end: int) -> None:
        """Treat the first `end` characters, at least an opener, as content up to the next tag."""
        opener = next((m for m in self._openers if self._buffer.startswith(m)), "")
        next_tag = self._tag_pattern.search(self._buffer, len(opener), max(end, len(opener)))
        if next_tag is not None and self._tags:
            end = next_tag.start()
        end = max(end, len(opener))
        start = len(opener) if opener in self._hidden else 0
        text = self._space_before_call + self._buffer[start:end]
        self._space_before_call = ""
        self._state = _ParserState.CONTENT
        self._buffer = self._buffer[end:]
        self._no_content_yet = False
        self._emit_text(text)
