"""One working day of an agent, as it comes over the wire without any header, and what links to what in it.

Shaped as OpenClaw sends it: a system prompt that mentions heartbeats, time stamps, the session in the first message,
transient context last, tool ids and arguments rewritten, replies as they were streamed. `{p}` is the person.
"""

from __future__ import annotations

from dataclasses import replace

from tests.collect.world import Ask, End, Step, calls, result

from openclaw_rl.types import ExchangeStatus, Message

SYSTEM = (
    "s <!-- openclaw:attempt:STABLE -->\nYou are a personal agent. Workspace: AGENTS.md HEARTBEAT.md MEMORY.md. "
    "On a heartbeat poll reply HEARTBEAT_OK. Before a memory flush write MEMORY.md. "
    + "Rules. " * 200
    + "<!-- /openclaw:attempt:DYNAMIC -->"
)
HELLO = (
    "u [Fri 2026-11-20 18:24 UTC] {p} here: what is on today?\n"
    "Runtime: agent=main | session=agent:main:{p} | host=box | model=myrl/tiny"
)
CONTEXT = "ctx {p} sits at the desk; it is now"
TOOLS = calls(
    ("call_{p}_1", "calendar", '{"day": "today", "who": "{p}"}'),
    ("call_{p}_2", "mail", '{"unread": true}'),
)
TOOLS_BACK = calls(
    ("call{p}1", "calendar", '{"who":"{p}","day":"today"}'), ("call{p}2", "mail", '{"unread":true}')
)
RESULTS = [result("call{p}1", "10:00 dentist, 15:00 {p}'s review"), result("call{p}2", "3 unread")]
DAY = "Two appointments and three unread mails, {p}: the dentist at ten and your review at three. "
NOTE = calls(("call_{p}_3", "write", '{"path": "notes.md", "text": "review at 3"}'), content="")
NOTE_BACK = calls(("call{p}3", "write", '{"text":"review at 3","path":"notes.md"}'))
PLAN = "For the review, {p}, begin with the numbers of the last quarter."
OTHER_PLAN = "For the review, {p}, begin with what went well and end with one wish."
NOTED = "Your note is written to notes.md, {p}: the review is at three."
DRAFT = "Here is the draft of your mail, {p}: dear all, the review moves to four."
LAST = "Sent, {p}. The review is at four, and everybody knows."

H1 = [SYSTEM, HELLO]
H2 = [*H1, TOOLS_BACK, *RESULTS]
H3 = [*H2, f"a {DAY}", "u [Fri 2026-11-20 18:26 UTC] Remember the review, {p} said."]
H4 = [*H3, "a OK", "u [Fri 2026-11-20 18:27 UTC] How should {p} prepare?"]
H5 = [*H4, f"a {OTHER_PLAN}", "u [Fri 2026-11-20 18:29 UTC] Much better. Note the time."]
H6 = [*H5, NOTE_BACK, result("call{p}3", "ok")]
HEARTBEAT = "u Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK."
H7 = [
    *H6,
    f"a {NOTED}",
    HEARTBEAT,
    "a HEARTBEAT_OK",
    "u [Fri 2026-11-20 19:02 UTC] Draft a mail: review at four.",
]
SUMMARY = "u Summary of the talk so far with {p}: a review at three was moved to four."
COMPACT = [SYSTEM, SUMMARY, H7[-1], f"a {DRAFT}"]
H8 = [*COMPACT, "u [Fri 2026-11-20 19:05 UTC] No, shorter. Then send it."]
H9 = [*H8, "a Done.", "u [Fri 2026-11-20 19:06 UTC] Is it out?"]
H10 = [*H9, f"a {LAST}", "u [Fri 2026-11-20 19:07 UTC] Great, thanks!"]

REQUESTS: list[tuple[str, list[str | Message], str | Message, ExchangeStatus]] = [
    ("look", [*H1, f"{CONTEXT} 18:24"], TOOLS, ExchangeStatus.DONE),
    ("tell", [*H2, f"{CONTEXT} 18:25"], DAY, ExchangeStatus.DONE),
    ("remember", [*H3, f"{CONTEXT} 18:26"], "", ExchangeStatus.FAILED),
    ("remember again", [*H3, f"{CONTEXT} 18:26"], "OK", ExchangeStatus.DONE),
    ("prepare", [*H4, f"{CONTEXT} 18:27"], PLAN, ExchangeStatus.DONE),
    ("prepare otherwise", [*H4, f"{CONTEXT} 18:28"], OTHER_PLAN, ExchangeStatus.DONE),
    ("note", [*H5, f"{CONTEXT} 18:29"], NOTE, ExchangeStatus.DONE),
    ("noted", [*H6, f"{CONTEXT} 18:29"], NOTED, ExchangeStatus.DONE),
    ("heartbeat", [*H6, f"a {NOTED}", HEARTBEAT], "HEARTBEAT_OK", ExchangeStatus.DONE),
    ("draft", [*H7, f"{CONTEXT} 19:02"], DRAFT, ExchangeStatus.DONE),
    ("send", [*H8, f"{CONTEXT} 19:05"], "Done.", ExchangeStatus.DONE),
    ("check", [*H9, f"{CONTEXT} 19:06"], LAST, ExchangeStatus.DONE),
    ("bye", [*H10, f"{CONTEXT} 19:07"], "Bye, {p}.", ExchangeStatus.DONE),
]
TITLE = (
    "title",
    [
        "s You are a title writer.",
        "u Write a short title for this conversation: {p} asked what is on today.",
    ],
    "What is on today",
    ExchangeStatus.DONE,
)
"""Sent beside the conversation, some time after its first reply."""

LINKS: dict[str, tuple[str | None, str, dict[str, str]]] = {
    "look": (None, "fresh", {}),
    "tell": ("look", "continuation", {"look": "exact"}),
    "remember": ("tell", "continuation", {"tell": "exact"}),
    "remember again": ("tell", "retry", {}),
    "prepare": ("remember again", "continuation", {"remember again": "exact"}),
    "prepare otherwise": ("remember again", "regeneration", {}),
    "note": ("prepare otherwise", "continuation", {"prepare otherwise": "exact"}),
    "noted": ("note", "continuation", {"note": "exact"}),
    "heartbeat": ("noted", "continuation", {}),
    "draft": ("heartbeat", "continuation", {"noted": "exact"}),
    "send": ("draft", "continuation", {"draft": "distinctive"}),
    "check": ("send", "continuation", {"send": "exact"}),
    "bye": ("check", "continuation", {"check": "exact"}),
    "title": (None, "fresh", {}),
}
"""name -> parent, relation, turns answered and how."""

STATES = dict.fromkeys(LINKS, "closed") | {
    "remember": "dropped failed",
    "prepare": "dropped superseded",
    "heartbeat": "dropped side",
    "bye": "served",
    "title": "dropped side",
}


def _said_by(person: str, what: str | Message) -> str | Message:
    if isinstance(what, str):
        return what.replace("{p}", person)
    return {key: _fill(person, value) for key, value in what.items()}


def _fill(person: str, value: object) -> object:
    if isinstance(value, str):
        return value.replace("{p}", person)
    if isinstance(value, list):
        return [_fill(person, item) for item in value]
    if isinstance(value, dict):
        return {key: _fill(person, item) for key, item in value.items()}
    return value


def _steps(
    person: str, request: tuple[str, list[str | Message], str | Message, ExchangeStatus]
) -> tuple[Ask, End]:
    name, history, reply, status = request
    ask = Ask(name=f"{person}/{name}", history=[_said_by(person, m) for m in history])
    return ask, End(name=ask.name, reply=_said_by(person, reply), status=status)


def conversation(person: str) -> list[Step]:
    """The requests and the ends of their replies, in order."""
    return [step for request in REQUESTS for step in _steps(person, request)]


def title(person: str) -> tuple[Ask, End]:
    """What runs beside the conversation, at any time after its first reply."""
    return _steps(person, TITLE)


def with_headers(steps: list[Step], session: str) -> list[Step]:
    """The same as sent by a client that names its session."""
    return [replace(step, session=session) if isinstance(step, Ask) else step for step in steps]
