"""Find out from a new request what the person did with earlier replies: regenerated, edited, or copied them.

A false observation becomes false evidence, a missing one only loses a sample. Programs do similar things: they sample
several replies to one prompt, or hand a conversation over to another agent. The bounds below leave that out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from openclaw_rl.collect.link import RequestLink
from openclaw_rl.collect.reply_slot import mismatch
from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import canonical_calls, hashed_text
from openclaw_rl.settings.load import SignalsConfig
from openclaw_rl.store import exchanges
from openclaw_rl.store.behaviour.observations import COPIED, EDITED, REGENERATED
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Capture, Exchange, ExchangeStatus, Kind, Message

MIN_READING_TIME = 1.0
"""Seconds between a reply and the request for another one; programs are faster."""
MAX_VARIANTS = 3
"""Earlier requests in one place of a conversation; with more, a program samples there or tries out prompts."""
MIN_EDIT_OVERLAP = 0.75
MIN_EDIT_CHARS = 8
MAX_EDIT_CHARS = 2_000
"""Share of the shorter message's character trigrams that the other one has, from which it is an edited message and not
another question; characters that both messages need for it, and that are compared."""
MIN_COPIED_CHARS = 80
MIN_LINE_CHARS = 16
"""Characters of copied lines that show copying; shorter lines do not count."""
MAX_PASTED_CHARS = 65_536
MAX_REPLY_CHARS = 16_384
MAX_PLACES = 8
"""Characters of a message and of a reply in which copied lines are searched, and places of a line's first characters
in the message. They bound the time, in which nothing else can be written to the store."""
MAX_CANDIDATES = 4
MAX_COMPARED_LINES = 20
"""Replies, and lines of one, that are searched in the reply's own prompt."""

Observation = tuple[str, str]
"""Turn, signal."""


def find_observations(
    conn: Connection,
    exchange: Exchange,
    decided: RequestLink,
    index: ExchangeIndex,
    signals: SignalsConfig,
) -> Iterator[Observation]:
    """Yield what the request of `exchange`, which is main traffic, shows about earlier turns."""
    request = exchange.request
    if request.capture is not Capture.FULL or not request.marks:
        return
    weights = {REGENERATED: signals.regenerated, EDITED: signals.edited}
    if request.marks[-1].role == "user" and any(weights.values()):
        observation = _find_replaced_turn(conn, exchange, decided, index)
        if observation is not None and weights[observation[1]]:
            yield observation
    if signals.copied:
        yield from _find_copied_turns(exchange, decided, index)


def _find_replaced_turn(
    conn: Connection, exchange: Exchange, decided: RequestLink, index: ExchangeIndex
) -> Observation | None:
    """Return the turn in whose place the request asks for another reply, to the same or an edited message."""
    request = exchange.request
    beside = [
        past
        for past in index.by_parent(request.scope, decided.session, decided.parent)
        if past.seq < exchange.seq and past.kind is Kind.MAIN and mismatch(request, past) is None
    ]
    if not 0 < len(beside) <= MAX_VARIANTS:
        return None
    past = beside[-1]
    # With a reaction in words, the words count.
    if not _is_read(past, request.admitted_at) or past.signatures:
        return None
    if past.context_chain == request.marks[-1].chain:
        return past.id, REGENERATED
    earlier = exchanges.get_readable(conn, [past.id]).get(past.id)
    if earlier is not None and _is_edited(_last_message(earlier), _last_message(exchange)):
        return past.id, EDITED
    return None


def _is_read(past: ExchangeSummary, at: float) -> bool:
    if past.status is not ExchangeStatus.DONE or past.capture is not Capture.FULL:
        return False
    return past.finished_at is not None and at - past.finished_at >= MIN_READING_TIME


def _last_message(exchange: Exchange) -> Message:
    request = exchange.request
    return request.messages[request.marks[-1].index] if request.marks and request.messages else {}


def _is_edited(before: Message, after: Message) -> bool:
    if before.get("role") != "user":
        return False
    texts = [hashed_text(message)[:MAX_EDIT_CHARS].casefold() for message in (before, after)]
    a, b = map(_trigrams, texts)
    is_long_enough = min(map(len, texts)) >= MIN_EDIT_CHARS
    return is_long_enough and (a & b).total() >= MIN_EDIT_OVERLAP * min(a.total(), b.total())


def _trigrams(text: str) -> Counter[str]:
    return Counter(text[at : at + 3] for at in range(len(text) - 2))


def _find_copied_turns(
    exchange: Exchange, decided: RequestLink, index: ExchangeIndex
) -> Iterator[Observation]:
    """Yield the reply that stands in a message of another conversation, and the one that went into a tool call.

    If several replies stand there, a program has put a conversation into one message.
    """
    request = exchange.request
    message = _last_message(exchange)
    pasted = hashed_text(message) if message.get("role") == "user" else ""
    called = _arguments_of_last_reply(exchange)
    if len(pasted) < MIN_COPIED_CHARS and len(called) < MIN_COPIED_CHARS:
        return
    elsewhere = _LineSearch(pasted)
    here = _LineSearch(called)
    for past, reply in index.main_replies_before(request.scope, exchange.seq):
        if past.session != decided.session:
            if past.user == request.user:
                elsewhere.add_reply(past, reply)
        elif past.id != decided.parent:
            here.add_reply(past, reply)
    for search in (elsewhere, here):
        turns = [
            past.id for past, lines in search.found if _are_new(lines, index.prompt_text(past))
        ]
        if len(turns) == 1:
            yield turns[0], COPIED


def _arguments_of_last_reply(exchange: Exchange) -> str:
    """Return the arguments of the tool calls in the history's last reply."""
    replies = [mark for mark in exchange.request.marks if mark.role == "assistant"]
    if not replies or not exchange.request.messages:
        return ""
    calls = canonical_calls(exchange.request.messages[replies[-1].index])
    return "\n".join(arguments for _, arguments in calls.values()).replace('\\"', '"')


class _LineSearch:
    """Search of replies whose lines stand in a text. `found` is empty if there are more than `MAX_CANDIDATES`."""

    def __init__(self, text: str) -> None:
        self._text = head_and_tail(text, MAX_PASTED_CHARS) if len(text) >= MIN_COPIED_CHARS else ""
        # By the characters that begin there.
        self._places: dict[str, list[int]] = {}
        for at in range(len(self._text) - MIN_LINE_CHARS + 1):
            places = self._places.setdefault(self._text[at : at + MIN_LINE_CHARS], [])
            if len(places) < MAX_PLACES:
                places.append(at)
        self._found: list[tuple[ExchangeSummary, list[str]]] = []

    @property
    def found(self) -> Sequence[tuple[ExchangeSummary, list[str]]]:
        """The replies, each with its lines that stand in the text, the longest first."""
        return self._found if len(self._found) <= MAX_CANDIDATES else ()

    def add_reply(self, past: ExchangeSummary, reply: str) -> None:
        """Search a reply."""
        if not self._text:
            return
        stripped = map(str.strip, head_and_tail(reply, MAX_REPLY_CHARS).splitlines())
        lines = {line for line in stripped if self._has(line)}
        if sum(map(len, lines)) >= MIN_COPIED_CHARS:
            self._found.append((past, sorted(lines, key=lambda line: (-len(line), line))))

    def _has(self, line: str) -> bool:
        return any(
            self._text.startswith(line, at) for at in self._places.get(line[:MIN_LINE_CHARS], ())
        )


def _are_new(lines: Sequence[str], prompt: str) -> bool:
    """Return whether enough characters of the lines did not stand in the reply's own prompt."""
    new = 0
    for line in lines[:MAX_COMPARED_LINES]:
        new += len(line) if line not in prompt else 0
        if new >= MIN_COPIED_CHARS:
            return True
    return False
