"""Regular expressions that recognise messages written by a client program; the defaults of the settings.

They run on any text that a client sends, and `re` has no timeout, so each must take linear time. Therefore adjacent
parts never match the same characters, and repetitions that could backtrack are possessive (`*+`).
"""

from __future__ import annotations

import re

# One or more blocks, without any text of the person before, between or after them.
OPENCLAW_CONTEXT = (
    r"^\s*(?:<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>(?:(?!<<<END_OPENCLAW_INTERNAL_CONTEXT>>>).)*"
    r"<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\s*)+$"
)
# The rest of a heartbeat or another wake-up in later requests, without text of the person in the same message.
OPENCLAW_WAKE = (
    r"^\s*+(?:\[\w{3} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*+\]\s*+)?"
    r"(?:\[OpenClaw (?:heartbeat poll|exec completion|cron wake|session event)\]"
    r"(?:\nDisable automatic completion turns[^\n]*+)?\s*+)+(?:Runtime: agent=[^\n]*+)?\s*+$"
)
# Text that a person types while the agent works arrives in a reminder, too; that one is not ephemeral.
SYSTEM_REMINDER = (
    r"^\s*(?:<system-reminder>(?!\s*The user sent a new message)(?:(?!</system-reminder>).)*</system-reminder>\s*)+$"
)
# Claude Code's report of a command that the person ran at its prompt; it is not a reaction to a reply.
LOCAL_COMMAND = (
    r"^\s*(?:<(local-command-(?:caveat|stdout|stderr)|command-(?:name|message|args)|bash-(?:input|stdout|stderr))>"
    r"(?:(?!</\1>).)*</\1>\s*)+$"
)

EPHEMERAL_PATTERNS = (OPENCLAW_CONTEXT, OPENCLAW_WAKE, SYSTEM_REMINDER, LOCAL_COMMAND)
"""A message that matches as a whole is ephemeral: it is not part of the history."""

SIDE_PATTERNS = (
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
    # Claude Code's own calls: a title, a summary, a suggestion of the person's next input, a recap, a probe.
    r"(?s)\A<session>\n.*</session>\s+Write the title\b",
    r"(?s)\A(CRITICAL: Respond with TEXT ONLY\b.{0,1000}?)?"
    r"Your task is to create a detailed summary of (the|this|the RECENT portion of the) conversation\b",
    r"\A\[SUGGESTION MODE: ",
    r"\AThe user stepped away and is coming back\. Recap\b",
    r"\Aquota\Z",
)
"""A request whose last user or system message matches counts as side traffic until its conversation continues."""

CLIENT_PROMPT_PATTERNS = (
    OPENCLAW_WAKE,
    r"(?s)Follow the heartbeat monitor scratch context when provided\..{0,4000}",
    r"(?s)A scheduled (reminder has been|cron event was) triggered\b.{0,20000}\nCurrent time: .{0,600}",
    r"(?s)An async command (completion event was triggered|you ran earlier (has )?completed)\b"
    r".{0,100000}\nCurrent time: .{0,600}",
    r"(?s)\[cron:[0-9a-f-]{36}\b[^\]\n]*\] .{0,100000}",
    r"(?s)(System: [^\n]*+\s++)*Read HEARTBEAT\.md\b.{0,600}\bHEARTBEAT_OK\b.{0,300}",
    r"(?s)(System: [^\n]*+\s++)*Pre-compaction memory flush\b.{0,2000}\bNO_REPLY\b.{0,800}",
)
"""A user message that matches as a whole is a client prompt: no person typed it."""

SHIPPED_PATTERNS = frozenset({*EPHEMERAL_PATTERNS, *SIDE_PATTERNS, *CLIENT_PROMPT_PATTERNS})
SEARCHED_CHARS = 16_384
"""Characters of a long text (its head and tail) that a pattern of the owner searches, as it may be slow."""


class ClientPattern:
    """A compiled expression; only a shipped one searches long texts in full. Raises `re.error` if it is invalid."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        self._compiled = re.compile(expression, flags)
        self._searches_all = expression in SHIPPED_PATTERNS

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(self._searched_text(text))

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._compiled.fullmatch(self._searched_text(text))

    def _searched_text(self, text: str) -> str:
        if self._searches_all or len(text) <= SEARCHED_CHARS:
            return text
        half = SEARCHED_CHARS // 2
        return f"{text[:half]}\n{text[-half:]}"
