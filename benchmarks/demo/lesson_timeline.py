"""The replies whose prompts had the user's main lesson, and the version whose weights follow it without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.errors import DamagedRow
from openclaw_rl.settings.load import Config
from openclaw_rl.status.report import read_store
from openclaw_rl.store import exchanges
from openclaw_rl.store.lessons import lessons


@dataclass(frozen=True, kw_only=True)
class LessonTimeline:
    """Places in a list of replies, from 0. `learned_at`: of the first reply by weights that follow the lesson."""

    text: str
    in_prompt: tuple[int, ...]
    learned_at: int | None


def read_timeline(config: Config, replies: Sequence[tuple[str, int]]) -> LessonTimeline | None:
    """Return the timeline of the lesson that most prompts had; None if no prompt had one.

    `replies`: id and policy version of each, in order.
    """
    with read_store(config) as conn:
        by_reply = []
        for id_, _ in replies:
            try:
                exchange = exchanges.get(conn, id_)
            except DamagedRow:
                exchange = None
            by_reply.append({} if exchange is None else dict(exchange.request.lessons))
        # Lessons of one text are one for a reader: one is of the conversation, another of the person.
        counts = Counter(text for texts in by_reply for text in set(texts.values()))
        if not counts:
            return None
        text = counts.most_common(1)[0][0]
        learned = [
            lesson.learned_version
            for lesson in lessons.list_lessons(conn)
            if lesson.text == text and lesson.learned_version is not None
        ]
    learned_at = None
    if learned:
        first = min(learned)
        answered = (place for place, (_, version) in enumerate(replies) if version >= first)
        learned_at = next(answered, None)
    return LessonTimeline(
        text=text,
        in_prompt=tuple(place for place, texts in enumerate(by_reply) if text in texts.values()),
        learned_at=learned_at,
    )
