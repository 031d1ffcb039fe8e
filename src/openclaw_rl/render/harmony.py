"""Parse replies of gpt-oss: messages in channels, each with a header: `<|channel|>final<|message|>...<|end|>`.

The channel `analysis` is reasoning; `final` and `commentary` are content; a message to `functions.NAME` is a call. The
reply starts after `<|start|>assistant`. Its last message ends with a stop token, which has no text.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from openclaw_rl.render.call_body import named_call
from openclaw_rl.render.reply_parser import Delta, ReplyParser, find_first, partial_match_length

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
# Namespace of the recipients that are functions.
_FUNCTIONS = "functions."
_MESSAGE_ENDS = (END, CALL, RETURN, START)
_HEADER_STARTS = (CHANNEL, START, MESSAGE, CONSTRAIN, "to=")
_RECIPIENT_PATTERN = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_PATTERN = re.compile(r"<\|channel\|>\s*(\w+)")
_TOKEN_PATTERN = re.compile("|".join(re.escape(t) for t in HARMONY_TOKENS))


class HarmonyParser(ReplyParser):
    """Parser for gpt-oss replies. Malformed calls become content; without tools (`names` None) all calls do."""

    def __init__(self, names: Collection[str] | None) -> None:
        """`names`: of the declared functions."""
        super().__init__()
        self._names = names
        self._buffer = ""
        # Place before which a call's arguments have no mark.
        self._searched = 0
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
        # A string with one reference grows in place.
        buffer = self._buffer
        self._buffer = ""
        buffer += text
        self._buffer = buffer
        del buffer
        while self._read_header() if self._header is None else self._read_body():
            pass
        return self._take_delta()

    def finish(self, *, is_cut: bool = False) -> Delta:
        rest = self._buffer.strip()
        is_unfinished_header = not rest or rest.startswith(HARMONY_TOKENS)
        if self._header is not None:
            self._end_last_message(is_cut=is_cut)
        elif not is_unfinished_header:
            self._open_message(CHANNEL + "final")
            self._emit_text(_TOKEN_PATTERN.sub("", self._buffer))
        self._buffer = ""
        self._header = None
        return self._take_delta()

    def _read_header(self) -> bool:
        """Read the header up to <|message|>; other text starts a message in `final`. False: more text is needed."""
        start = self._buffer.lstrip()
        may_become_header = any(opening.startswith(start) for opening in _HEADER_STARTS)
        if not start or may_become_header:
            return False
        if not start.startswith(_HEADER_STARTS):
            self._open_message(CHANNEL + "final")
            return True
        at = start.find(MESSAGE)
        if at < 0 and len(start) < MAX_HEADER_CHARS + len(MESSAGE):
            return False
        if 0 <= at <= MAX_HEADER_CHARS:
            self._open_message(start[:at])
            self._buffer = start[at + len(MESSAGE) :]
        else:
            self._open_message(CHANNEL + "final")
        return True

    def _open_message(self, header: str) -> None:
        channel = _CHANNEL_PATTERN.search(header)
        self._header = header
        self._channel = channel[1] if channel else "final"
        self._function = self._called_function(header)
        if self._function:
            self._channel = "commentary"
        if self.in_reasoning:
            self._newline_pending[True] = bool(self._reasoning or self._pending.reasoning)
        else:
            self._newline_pending[False] = bool(self._content or self._pending.content)

    def _called_function(self, header: str) -> str:
        """Return the name of the function that a message calls; empty if it calls none."""
        recipient = _RECIPIENT_PATTERN.search(header)
        if self._names is None or recipient is None or not recipient[1].startswith(_FUNCTIONS):
            return ""
        return recipient[1].removeprefix(_FUNCTIONS)

    def _read_body(self) -> bool:
        """Emit text at once; hold a call's arguments until the message ends. False: more text is needed."""
        marks = _MESSAGE_ENDS if self._function else HARMONY_TOKENS
        at, mark = find_first(self._buffer, marks, self._searched)
        if at < 0:
            if self._function:
                longest = max(map(len, marks))
                self._searched = max(0, len(self._buffer) - longest + 1)
            if not self._function:
                cut = len(self._buffer) - partial_match_length(self._buffer, HARMONY_TOKENS)
                self._emit_text(self._buffer[:cut])
                self._buffer = self._buffer[cut:]
            return False
        self._searched = 0
        rest = self._buffer[at:] if mark == START else self._buffer[at + len(mark) :]
        if mark in _MESSAGE_ENDS:
            self._end_message(self._buffer[:at])
            self._header = None
        else:
            # Drop a token that has no meaning here.
            self._emit_text(self._buffer[:at])
        self._buffer = rest
        return True

    def _end_last_message(self, *, is_cut: bool) -> None:
        """End the message that the reply ended. A limit may have cut arguments that had not begun, or not ended."""
        text = self._buffer
        if self._function and not is_cut:
            text = text[: len(text) - partial_match_length(text, _MESSAGE_ENDS)]
        elif not text.strip():
            self._function = ""
        self._end_message(text, is_cut=is_cut)

    def _end_message(self, text: str, *, is_cut: bool = False) -> None:
        call = None
        if self._function and self._names is not None:
            call = named_call(self._function, text.strip(), self._names, may_complete=not is_cut)
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
