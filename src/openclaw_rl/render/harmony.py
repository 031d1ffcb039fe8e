"""Parse replies of gpt-oss: messages in channels, each with a header: `<|channel|>final<|message|>...<|end|>`.

The channel `analysis` is reasoning; `final` and `commentary` are content; a message to `functions.NAME` is a call. The
reply starts after `<|start|>assistant`. Its last message ends with a stop token, which has no text.
"""

from __future__ import annotations

import re

from openclaw_rl.render.reply_parser import Delta, ReplyParser, find_first, partial_match_length
from openclaw_rl.render.tool_calls import make_call

START = "<|start|>"
END = "<|end|>"
MESSAGE = "<|message|>"
CHANNEL = "<|channel|>"
CALL = "<|call|>"
RETURN = "<|return|>"
CONSTRAIN = "<|constrain|>"
HARMONY_TOKENS = (START, END, MESSAGE, CHANNEL, CALL, RETURN, CONSTRAIN)
# Longer text is not a header.
MAX_HEADER_CHARS = 256
_MESSAGE_ENDS = (END, CALL, RETURN, START)
_HEADER_STARTS = (CHANNEL, START, MESSAGE, CONSTRAIN, "to=")
_RECIPIENT_PATTERN = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_PATTERN = re.compile(r"<\|channel\|>\s*(\w+)")
_TOKEN_PATTERN = re.compile("|".join(re.escape(t) for t in HARMONY_TOKENS))


class HarmonyParser(ReplyParser):
    """Parser for gpt-oss replies. Malformed calls become content; without `tools` all calls do."""

    def __init__(self, *, tools: bool) -> None:
        super().__init__()
        self._tools = tools
        self._buffer = ""
        # Header of the current message; None between messages.
        self._header: str | None = None
        self._channel = ""
        self._function = ""
        # By reasoning: a newline is pending before the next text.
        self._newline_pending = {False: False, True: False}

    @property
    def in_reasoning(self) -> bool:
        return self._header is not None and self._channel == "analysis" and not self._function

    def push(self, text: str) -> Delta:
        self._buffer += text
        while self._read_header() if self._header is None else self._read_body():
            pass
        return self._take_delta()

    def finish(self) -> Delta:
        if self._header is not None:
            self._end_message(self._buffer)
        elif (rest := self._buffer.strip()) and not rest.startswith(HARMONY_TOKENS):
            # Not an unfinished header.
            self._open_message(CHANNEL + "final")
            self._emit_text(_TOKEN_PATTERN.sub("", self._buffer))
        self._buffer = ""
        self._header = None
        return self._take_delta()

    def _read_header(self) -> bool:
        """Read the header up to <|message|>; other text starts a message in `final`. False: more text is needed."""
        start = self._buffer.lstrip()
        if not start or any(o.startswith(start) for o in _HEADER_STARTS):
            return False
        at = start.find(MESSAGE)
        is_header = start.startswith(_HEADER_STARTS)
        if is_header and at < 0 and len(start) < MAX_HEADER_CHARS + len(MESSAGE):
            return False
        if is_header and 0 <= at <= MAX_HEADER_CHARS:
            self._open_message(start[:at])
            self._buffer = start[at + len(MESSAGE) :]
        else:
            self._open_message(CHANNEL + "final")
        return True

    def _open_message(self, header: str) -> None:
        channel = _CHANNEL_PATTERN.search(header)
        self._header = header
        self._channel = channel[1] if channel else "final"
        self._function = ""
        recipient = _RECIPIENT_PATTERN.search(header)
        if self._tools and recipient is not None and recipient[1].startswith("functions."):
            self._function = recipient[1].removeprefix("functions.")
        if self._function:
            self._channel = "commentary"
        reasoning = self.in_reasoning
        text = self._reasoning if reasoning else self._content
        new = self._pending.reasoning if reasoning else self._pending.content
        self._newline_pending[reasoning] = bool(text or new)

    def _read_body(self) -> bool:
        """Emit text at once; hold a call's arguments until the message ends. False: more text is needed."""
        marks = _MESSAGE_ENDS if self._function else HARMONY_TOKENS
        at, mark = find_first(self._buffer, marks)
        if at < 0:
            if not self._function:
                cut = len(self._buffer) - partial_match_length(self._buffer, HARMONY_TOKENS)
                self._emit_text(self._buffer[:cut])
                self._buffer = self._buffer[cut:]
            return False
        rest = self._buffer[at:] if mark == START else self._buffer[at + len(mark) :]
        if mark in _MESSAGE_ENDS:
            self._end_message(self._buffer[:at])
            self._header = None
        else:
            # Drop a token that has no meaning here.
            self._emit_text(self._buffer[:at])
        self._buffer = rest
        return True

    def _end_message(self, text: str) -> None:
        call = make_call(self._function, text.strip()) if self._function else None
        self._function = ""
        if call is not None:
            self._append_calls((call,))
        else:
            self._emit_text(_TOKEN_PATTERN.sub("", text))

    def _emit_text(self, text: str) -> None:
        reasoning = self.in_reasoning
        if text:
            apart = self._newline_pending[reasoning]
            self._newline_pending[reasoning] = False
            self._append_text("\n" * apart + text, reasoning=reasoning)
