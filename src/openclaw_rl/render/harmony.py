"""Parse replies of gpt-oss: messages in channels, each with a header: `<|channel|>final<|message|>...<|end|>`.

The channel `analysis` is reasoning; `final` and `commentary` are content; a message to `functions.NAME` is a call. The
reply starts after `<|start|>assistant`. Its last message ends with a stop token, which has no text.
"""

from __future__ import annotations

import re

from openclaw_rl.render.reply_parser import Delta, Parser, held_back
from openclaw_rl.render.tool_calls import make_call

START, END, MESSAGE, CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
CALL, RETURN, CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
TOKENS = (START, END, MESSAGE, CHANNEL, CALL, RETURN, CONSTRAIN)
HEADER_CHARS = 256  # longer text is not a header
_ENDS = (END, CALL, RETURN, START)
_OPENS = (CHANNEL, START, MESSAGE, CONSTRAIN, "to=")
_RECIPIENT, _CHANNEL = re.compile(r"\bto=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")
_TOKEN = re.compile("|".join(re.escape(t) for t in TOKENS))


class HarmonyParser(Parser):
    """Parser for gpt-oss replies. Malformed calls become content; without `tools` all calls do."""

    def __init__(self, *, tools: bool) -> None:
        super().__init__()
        self._tools = tools
        self._held = ""
        self._header: str | None = None  # header of the current message; None between messages
        self._channel = ""
        self._function = ""
        self._apart = {False: False, True: False}  # by reasoning: a newline is pending before the next text

    @property
    def in_reasoning(self) -> bool:
        return self._header is not None and self._channel == "analysis" and not self._function

    def push(self, text: str) -> Delta:
        self._held += text
        while self._head() if self._header is None else self._body():
            pass
        return self._take()

    def finish(self) -> Delta:
        if self._header is not None:
            self._end_message(self._held)
        elif (rest := self._held.strip()) and not rest.startswith(TOKENS):  # else drop the unfinished header
            self._open(CHANNEL + "final")
            self._say_plain(_TOKEN.sub("", self._held))
        self._held, self._header = "", None
        return self._take()

    def _head(self) -> bool:
        """Read the header up to <|message|>; other text starts a message in `final`. False: more text is needed."""
        start = self._held.lstrip()
        if not start or any(o.startswith(start) for o in _OPENS):
            return False
        at = start.find(MESSAGE)
        if start.startswith(_OPENS) and at < 0 and len(start) < HEADER_CHARS + len(MESSAGE):
            return False
        if start.startswith(_OPENS) and 0 <= at <= HEADER_CHARS:
            self._open(start[:at])
            self._held = start[at + len(MESSAGE) :]
        else:
            self._open(CHANNEL + "final")
        return True

    def _open(self, header: str) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._header = header
        self._channel = channel[1] if channel else "final"
        named = recipient[1] if recipient and self._tools else ""
        self._function = named.removeprefix("functions.") if named.startswith("functions.") else ""
        if self._function:
            self._channel = "commentary"
        reasoning = self.in_reasoning
        said = self._reasoning if reasoning else self._content
        new = self._new.reasoning if reasoning else self._new.content
        self._apart[reasoning] = bool(said or new)

    def _body(self) -> bool:
        """Emit text at once; hold a call's arguments until the message ends. False: more text is needed."""
        places = [(at, m) for m in TOKENS if (at := self._held.find(m)) >= 0]
        if self._function:
            places = [(at, m) for at, m in places if m in _ENDS]
        if not places:
            if not self._function:
                cut = len(self._held) - held_back(self._held, TOKENS)
                self._say_plain(self._held[:cut])
                self._held = self._held[cut:]
            return False
        at, mark = min(places)
        rest = self._held[at:] if mark == START else self._held[at + len(mark) :]
        if mark in _ENDS:
            self._end_message(self._held[:at])
            self._header = None
        else:
            self._say_plain(self._held[:at])  # drop a token that has no meaning here
        self._held = rest
        return True

    def _end_message(self, text: str) -> None:
        call = make_call(self._function, text.strip()) if self._function else None
        self._function = ""
        if call is not None:
            self._call_made((call,))
        else:
            self._say_plain(_TOKEN.sub("", text))

    def _say_plain(self, text: str) -> None:
        reasoning = self.in_reasoning
        if text:
            apart, self._apart[reasoning] = self._apart[reasoning], False
            self._say("\n" * apart + text, reasoning=reasoning)
