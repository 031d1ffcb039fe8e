"""The views of conversations: a list with filters and search, one conversation, and one turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

from openclaw_rl.page.token_colours import collect_tokens
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.conversations.conversation_text import make_search, titles_of_turns
from openclaw_rl.status.conversations.conversation_turns import (
    code_words,
    conversation_turns,
    whole_turn,
)
from openclaw_rl.status.sentences import score_word
from openclaw_rl.store import conversations
from openclaw_rl.store.conversations import (
    ConversationFilter,
    ConversationSummary,
    TurnPlace,
    VerdictFilter,
)

PAGE_SIZE = 30
TURNS_PER_PAGE = 40
MAX_SEARCH_CHARS = 200
# Agents and users that are offered; others can be typed into the address.
_MAX_NAMES = 100
_NAMES_READ = 5000
# Value of a filter for clients that send no name.
_NO_NAME = "-"
_FILTERS = ("agent", "user", "day", "verdict", "why", "q")
_VERDICT_WORDS = {
    VerdictFilter.GOOD: "good",
    VerdictFilter.BAD: "not good",
    VerdictFilter.NEITHER: "neither",
    VerdictFilter.NO_OPINION: "no opinion",
    VerdictFilter.WAITING: "waiting for a verdict",
}
_Choice = TypeVar("_Choice", VerdictFilter, ReasonCode)


# ------------------------------------------------------------------------------------------ list


def collect_conversations(request: ViewRequest) -> Mapping[str, Any]:
    conn = request.conn
    wanted = _read_filter(request)
    before = request.integer("before")
    page = conversations.find_conversations(conn, wanted, before=before, limit=PAGE_SIZE)
    summaries = conversations.summarise(conn, page.sessions)
    titles = titles_of_turns(conn, [summary.first_turn for summary in summaries])
    chosen = {name: request.text(name)[:MAX_SEARCH_CHARS] for name in _FILTERS}
    return {
        "rows": [_row_data(summary, titles[summary.first_turn]) for summary in summaries],
        "chosen": chosen,
        "zone": request.zone,
        "is_filtered": any(chosen.values()),
        "is_first": before is None,
        "query": _query(chosen, before),
        "next_query": None if page.before is None else _query(chosen, page.before),
        "searched_until": page.searched_until,
        "verdicts": [(each.value, _VERDICT_WORDS[each]) for each in VerdictFilter],
        "codes": [
            (code.value, code_words(code), count)
            for code, count in conversations.count_untrained(conn).items()
        ],
        **_known_names(request),
    }


def _read_filter(request: ViewRequest) -> ConversationFilter:
    """Return the filter of the address. Raises `NotFound` for an unknown value."""
    day = _read_day(request)
    return ConversationFilter(
        agent=_read_name(request.text("agent")),
        user=_read_name(request.text("user")),
        since=None if day is None else day[0],
        until=None if day is None else day[1],
        verdict=_read_choice(request, "verdict", VerdictFilter),
        code=_read_choice(request, "why", ReasonCode),
        is_match=make_search(request.text("q")[:MAX_SEARCH_CHARS]),
    )


def _read_name(value: str) -> str | None:
    if not value:
        return None
    return "" if value == _NO_NAME else value


def _read_day(request: ViewRequest) -> tuple[float, float] | None:
    """Return the first and the last moment of a day of the browser's calendar."""
    value = request.text("day")
    if not value:
        return None
    try:
        begin = datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=request.zone)
        # The last day of the calendar has no end.
        end = begin + timedelta(days=1)
        return begin.timestamp(), end.timestamp()
    except (ValueError, OverflowError):
        raise NotFound(f"{value[:40]!r} is not a day: expected YYYY-MM-DD") from None


def _read_choice(request: ViewRequest, name: str, choices: type[_Choice]) -> _Choice | None:
    value = request.text(name)
    if not value:
        return None
    try:
        return choices(value)
    except ValueError:
        raise NotFound(f"{name} in the address is {value[:40]!r}, which is not known") from None


def _query(chosen: Mapping[str, str], before: int | None) -> str:
    """Return the query string of the list. `before`: where the page begins."""
    values: dict[str, str | int] = {name: value for name, value in chosen.items() if value}
    if before is not None:
        values["before"] = before
    return urlencode(values, errors="replace")


def _known_names(request: ViewRequest) -> Mapping[str, Any]:
    """Return the agents and users of the newest exchanges; each exchange is read once."""
    known = request.cache.setdefault("names", {"agents": set(), "users": set(), "seq": 0})
    agents, users, seq = conversations.people_since(request.conn, known["seq"], _NAMES_READ)
    agents |= known["agents"]
    users |= known["users"]
    request.cache["names"] = {"agents": agents, "users": users, "seq": seq}
    return {"agents": _name_options(agents), "users": _name_options(users)}


def _name_options(names: set[str]) -> list[tuple[str, str]]:
    """Return (value, label) of the options of a filter."""
    options = [(_NO_NAME, "without a name") if "" in names else (_NO_NAME, "")]
    options += [(name, name) for name in sorted(names) if name][:_MAX_NAMES]
    return [(value, label) for value, label in options if label]


def _row_data(summary: ConversationSummary, title: str) -> Mapping[str, Any]:
    tags = [
        (score_word(score), _SCORE_CLASSES[score], summary.scores[score])
        for score in (1, -1, 0, None)
        if score in summary.scores
    ]
    if summary.waiting:
        tags.append((_VERDICT_WORDS[VerdictFilter.WAITING], "warn", summary.waiting))
    return {
        "id": summary.first_turn,
        "title": title,
        "agent": summary.agent,
        "user": summary.user,
        "turns": summary.turns,
        "last_at": summary.last_at,
        "tags": tags,
    }


_SCORE_CLASSES: Mapping[int | None, str] = {1: "good", -1: "bad", 0: "", None: ""}


# -------------------------------------------------------------------------------- one conversation


def collect_conversation(request: ViewRequest) -> Mapping[str, Any]:
    """Return the turns of the conversation that any of its turns names; `from`: number of the first one shown."""
    conn = request.conn
    place = _require_turn(request, "session")
    part = conversations.session_part(
        conn, place.session, start=request.integer("from", 0) or 0, limit=TURNS_PER_PAGE
    )
    summary = next(iter(conversations.summarise(conn, [place.session])), None)
    first = request.text("session") if summary is None else summary.first_turn
    return {
        "id": first,
        "title": titles_of_turns(conn, [first])[first],
        "summary": summary,
        "turns": conversation_turns(conn, part.ids),
        "earlier": part.earlier,
        "later": part.later,
        "start": request.integer("from"),
        "ticked": request.texts("turn"),
        "score_classes": _SCORE_CLASSES,
    }


def _require_turn(request: ViewRequest, name: str) -> TurnPlace:
    place = conversations.place_of_turn(request.conn, request.text(name))
    if place is None:
        raise NotFound("There is no such conversation, or it was erased.")
    return place


# ---------------------------------------------------------------------------------------- one turn


def collect_turn(request: ViewRequest) -> Mapping[str, Any]:
    conn = request.conn
    place = _require_turn(request, "id")
    turn = whole_turn(conn, request.text("id"))
    before, after = conversations.neighbours(conn, place.session, place.seq)
    return {
        "id": request.text("id"),
        "turn": turn,
        "seq": place.seq,
        "episode": place.episode,
        "before": before,
        "after": after,
        "tokens": collect_tokens(request, request.text("id"), request.text("show")),
        "score_classes": _SCORE_CLASSES,
    }


VIEWS: Sequence[View] = (
    View(path="/ui/conversations", template="conversations.html", collect=collect_conversations),
    View(
        path="/ui/conversations/{session}",
        template="conversation.html",
        collect=collect_conversation,
    ),
    View(path="/ui/turns/{id}", template="turn.html", collect=collect_turn),
)
