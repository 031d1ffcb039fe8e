"""By which words a client's own messages are known: regular expressions, the defaults of the settings.

`re` cannot be timed out, and these run over whatever a client sends: none of them may take more than linear time. So no
two neighbours match the same characters, and what could give characters back is possessive (`*+`).
"""

from __future__ import annotations

import re

# One block or several, and not a word of the person's before, between or after them.
OPENCLAW_CONTEXT = (
    r"^\s*(?:<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>(?:(?!<<<END_OPENCLAW_INTERNAL_CONTEXT>>>).)*"
    r"<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\s*)+$"
)
# What is left of a heartbeat or another wake in later requests, with nothing of the person's in the same message.
OPENCLAW_WAKE = (
    r"^\s*+(?:\[\w{3} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*+\]\s*+)?"
    r"(?:\[OpenClaw (?:heartbeat poll|exec completion|cron wake|session event)\]"
    r"(?:\nDisable automatic completion turns[^\n]*+)?\s*+)+(?:Runtime: agent=[^\n]*+)?\s*+$"
)
# What a person typed while the agent worked comes in one, too; that is no passing context.
REMINDER = (
    r"^\s*(?:<system-reminder>(?!\s*The user sent a new message)(?:(?!</system-reminder>).)*</system-reminder>\s*)+$"
)
# What Claude Code tells of a command that the person ran at its prompt: they are no words about a reply.
LOCAL_COMMAND = (
    r"^\s*(?:<(local-command-(?:caveat|stdout|stderr)|command-(?:name|message|args)|bash-(?:input|stdout|stderr))>"
    r"(?:(?!</\1>).)*</\1>\s*)+$"
)

TRANSIENT = (OPENCLAW_CONTEXT, OPENCLAW_WAKE, REMINDER, LOCAL_COMMAND)
"""A message that is this as a whole is passing context: no part of the history."""

SIDE = (
    r"(?i)\A\W*(please )?(generate|create|write|provide|suggest) (an? |the )?([\w,'-]+ ){0,6}title\b"
    r"[^.\n]{0,40}\b(for|of|summari[sz]ing|based on) (this|the)( following| whole| coding)?"
    r" (conversation|chat|session|dialogue)\b",
    r"(?i)\A\W*(generate|create|write) (an? )?([\w,'-]+ ){0,4}title\b[^.\n]{0,60}\bfrom the user's first message\b",
    r"(?i)\AYou are an? ([\w'-]+ ){0,2}summari[sz]ation assistant\b",
    r"(?i)\A\W*(please )?summari[sz]e (this|the)( coding)? (conversation|chat|session)\b",
    r"(?i)\AYou (are|write|generate|create)\b[^.\n]{0,30}"
    r"\b(title (generator|writer)|(conversation|chat|session) titles?)\b",
    r"(?i)\ABased on this conversation, generate a short\b[^.\n]{0,40}\bslug\b",
    r"(?i)\AYou write the live status line for an AI assistant\b",
    r"(?s)\A### Task:\n.{1,8000}### Chat History:",
    r"(?i)\A### Task:\s+Generate a concise,? [^.\n]{0,40}\btitle\b",
    # Claude Code's own calls: a title, a summary, a suggestion of the person's next words, a recap, a probe.
    r"(?s)\A<session>\n.*</session>\s+Write the title\b",
    r"(?s)\A(CRITICAL: Respond with TEXT ONLY\b.{0,1000}?)?"
    r"Your task is to create a detailed summary of (the|this|the RECENT portion of the) conversation\b",
    r"\A\[SUGGESTION MODE: ",
    r"\AThe user stepped away and is coming back\. Recap\b",
    r"\Aquota\Z",
)
"""A last user or system message like this looks like side traffic, until the talk goes on."""

INTERLUDES = (
    OPENCLAW_WAKE,
    r"(?s)Follow the heartbeat monitor scratch context when provided\..{0,4000}",
    r"(?s)A scheduled (reminder has been|cron event was) triggered\b.{0,20000}\nCurrent time: .{0,600}",
    r"(?s)An async command (completion event was triggered|you ran earlier (has )?completed)\b"
    r".{0,100000}\nCurrent time: .{0,600}",
    r"(?s)\[cron:[0-9a-f-]{36}\b[^\]\n]*\] .{0,100000}",
    r"(?s)(System: [^\n]*+\s++)*Read HEARTBEAT\.md\b.{0,600}\bHEARTBEAT_OK\b.{0,300}",
    r"(?s)(System: [^\n]*+\s++)*Pre-compaction memory flush\b.{0,2000}\bNO_REPLY\b.{0,800}",
)
"""A user message that is this as a whole is the client's own: nobody typed it."""

SHIPPED = frozenset({*TRANSIENT, *SIDE, *INTERLUDES})
SEARCHED_CHARS = 16_384
"""Of a long text an owner's pattern is shown the head and the tail, together so much: it may be a slow one."""


class Pattern:
    """One expression, compiled. A shipped one is shown every text whole. Raises `re.error` for what is none."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        self._compiled = re.compile(expression, flags)
        self._whole = expression in SHIPPED

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(self._shown(text))

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._compiled.fullmatch(self._shown(text))

    def _shown(self, text: str) -> str:
        if self._whole or len(text) <= SEARCHED_CHARS:
            return text
        half = SEARCHED_CHARS // 2
        return f"{text[:half]}\n{text[-half:]}"
