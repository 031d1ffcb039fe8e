"""Views of what was learned in words: the lessons as cards, and each lesson with its evidence and practice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.page.views import answers
from openclaw_rl.status.conversations.turn_words import questions_of_turns
from openclaw_rl.status.lessons_report import is_in_prompts, scope_words
from openclaw_rl.status.withdrawn_lessons import withdrawal_text
from openclaw_rl.store import own_prompts
from openclaw_rl.store.lessons import cards, lessons
from openclaw_rl.store.lessons.cards import CardPlace, LessonCard
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage.policy_names import head_version, read_heads

CARDS_A_PAGE = 20
QUOTES_A_PAGE = 20
_PRACTICE_SHOWN = 10
_SUPERSEDED_SHOWN = 30
_IN_FORCE = (LessonState.ACTIVE, LessonState.LEARNED, LessonState.WITHDRAWN)
FILTERS: Mapping[str, tuple[str, Sequence[LessonState]]] = {
    "": ("In force", _IN_FORCE),
    "active": ("Not yet in the weights", (LessonState.ACTIVE,)),
    "learned": ("In the weights", (LessonState.LEARNED,)),
    "withdrawn": ("Withdrawn", (LessonState.WITHDRAWN,)),
    "superseded": ("Superseded by a later one", (LessonState.SUPERSEDED,)),
    "all": ("All", tuple(LessonState)),
}
"""Value of the filter -> its label, and the states that it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonTag:
    """A short statement about a lesson. `kind`: a class of the style sheet; `link`: where it leads."""

    text: str
    kind: str = ""
    link: str = ""


def collect_cards(request: ViewRequest) -> Mapping[str, Any]:
    """Return one page of the lessons, by the day on which they were said last."""
    chosen = request.text("state")
    if chosen not in FILTERS:
        raise NotFound(f"no lessons are {chosen[:40]!r}: expected one of {', '.join(FILTERS)}")
    search = request.text("search").strip()[:200]
    before = _read_place(request)
    rows = cards.newest_cards(
        request.conn,
        states=FILTERS[chosen][1],
        search=search,
        before=before,
        limit=CARDS_A_PAGE + 1,
    )
    shown = rows[:CARDS_A_PAGE]
    counts = cards.count_since(request.conn, request.today)
    return {
        "days": _group_by_day(shown, request),
        "said_today": counts.said,
        "new_today": counts.new,
        "superseded_today": counts.superseded,
        "state": chosen,
        "filters": {name: label for name, (label, _) in FILTERS.items()},
        "search": search,
        "is_first_page": before is None,
        "next": shown[-1].place if len(rows) > CARDS_A_PAGE else None,
        "query": _query_text(request),
    }


def collect_lesson(request: ViewRequest) -> Mapping[str, Any]:
    """Return a lesson with its evidence, its practice and what can be compared."""
    id_ = request.text("lesson")
    stored = cards.find_card(request.conn, id_)
    if stored is None:
        raise NotFound(f"There is no lesson {id_[:40]!r}. It may have been forgotten.")
    card = _drawable(stored)
    quotes = cards.newest_quotes(
        request.conn, id_, before=request.integer("before"), limit=QUOTES_A_PAGE + 1
    )
    lesson = card.lesson
    practised = cards.newest_practice(request.conn, id_, _PRACTICE_SHOWN)
    return {
        **_card_data(card, request),
        "quotes": quotes[:QUOTES_A_PAGE],
        "next": quotes[QUOTES_A_PAGE - 1].row if len(quotes) > QUOTES_A_PAGE else None,
        "practised": practised,
        "questions": questions_of_turns(request.conn, [source for source, _ in practised]),
        "superseded": cards.superseded_cards(request.conn, id_, _SUPERSEDED_SHOWN),
        "scope_words": scope_words,
        "head": head_version(read_heads(request.conn), lesson.policy),
        "curve": {
            "label": "version",
            "x": [version for version, _ in card.curve],
            "series": [{"label": "divergence", "values": [value for _, value in card.curve]}],
        },
    }


def collect_comparison(request: ViewRequest) -> Mapping[str, Any]:
    """Return the prompts that the base and the head are to answer, to show what a lesson changed."""
    lesson = lessons.get(request.conn, request.text("lesson"))
    if lesson is None:
        raise NotFound("This lesson was forgotten meanwhile.")
    head = head_version(read_heads(request.conn), lesson.policy)
    turns = own_prompts.prompts_of_lesson(request.conn, lesson, answers.PROMPTS)
    return {"turns": turns, "version": head}


def lesson_tags(card: LessonCard, mode: str) -> list[LessonTag]:
    """Return what became of a lesson. `mode`: `serve.lessons`."""
    lesson = card.lesson
    tags = []
    is_withdrawn = lesson.state is LessonState.WITHDRAWN
    if is_in_prompts(asdict(lesson), mode):
        tags.append(LessonTag(text="✓ in prompts", kind="good"))
    elif lesson.state is LessonState.SUPERSEDED:
        link = f"/ui/learned/{lesson.superseded_by}" if lesson.superseded_by else ""
        tags.append(LessonTag(text="superseded by a later one", link=link))
    elif not is_withdrawn:
        tags.append(LessonTag(text="not in prompts"))
    if is_withdrawn:
        tags.append(LessonTag(text="✗ withdrawn", kind="bad"))
    if lesson.learned_version is not None:
        text = f"✓ in the weights since version {lesson.learned_version}"
        tags.append(
            LessonTag(text=text, kind="good", link=f"/ui/versions/{lesson.learned_version}")
        )
    if card.practice:
        replies = "reply" if card.practice == 1 else "replies"
        tags.append(LessonTag(text=f"practised with {card.practice} {replies}"))
    if lesson.is_pinned:
        tags.append(LessonTag(text="pinned", kind="warn"))
    return tags


def _drawable(card: LessonCard) -> LessonCard:
    """Return a card whose curve has only finite values."""
    return replace(card, curve=tuple(point for point in card.curve if math.isfinite(point[1])))


def _card_data(stored: LessonCard, request: ViewRequest) -> dict[str, Any]:
    card = _drawable(stored)
    lesson = card.lesson
    is_withdrawn = lesson.state is LessonState.WITHDRAWN
    withdrawal = None if lesson.withdrawal is None else asdict(lesson.withdrawal)
    return {
        "card": card,
        "lesson": lesson,
        "tags": lesson_tags(card, request.config.serve.lessons),
        "scope": scope_words(lesson.scope_kind, lesson.scope_value),
        "withdrawal": withdrawal_text(withdrawal) if is_withdrawn else "",
        "spark": _spark_points(card.curve),
    }


def _spark_points(curve: Sequence[tuple[int, float]]) -> str:
    """Return the points of a small curve of 100 by 24, from 0 to the largest value; "" for fewer than two."""
    if len(curve) < 2:
        return ""
    first = curve[0][0]
    span = max(curve[-1][0] - first, 1)
    largest = max(value for _, value in curve) or 1.0
    points = []
    for version, value in curve:
        x = 2 + 96 * (version - first) / span
        y = 22 - 20 * max(value, 0.0) / largest
        points.append(f"{x:.1f},{y:.1f}")
    return " ".join(points)


def _group_by_day(shown: Iterable[LessonCard], request: ViewRequest) -> list[dict[str, Any]]:
    """Return the cards below "Today", "Yesterday" and "Earlier"."""
    today = request.today
    yesterday = request.yesterday

    def day_of(card: LessonCard) -> str:
        if card.place.said_at >= today:
            return "Today"
        return "Yesterday" if card.place.said_at >= yesterday else "Earlier"

    return [
        {"title": day, "cards": [_card_data(card, request) for card in group]}
        for day, group in groupby(shown, key=day_of)
    ]


def _read_place(request: ViewRequest) -> CardPlace | None:
    row = request.integer("row")
    if row is None:
        return None
    try:
        return CardPlace(said_at=float(request.text("before")), row=row)
    except ValueError:
        raise NotFound("before in the address is no time") from None


def _query_text(request: ViewRequest) -> str:
    """Return the query of the address, which a live part asks for again."""
    names = ("state", "search", "before", "row")
    return urlencode({name: request.text(name) for name in names if request.text(name)})


VIEWS: Sequence[View] = (
    View(path="/ui/learned", template="learned.html", collect=collect_cards),
    View(path="/ui/learned/{lesson}", template="lesson.html", collect=collect_lesson),
    View(
        path="/ui/learned/{lesson}/comparison",
        template="comparison.html",
        collect=collect_comparison,
    ),
    *answers.VIEWS,
)
