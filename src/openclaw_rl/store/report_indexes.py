"""SQLAlchemy definitions of the indexes of reports: what `status` counts, and the lists of sessions and versions.

SQLite uses a partial index only if a query repeats its condition with literals, so queries use the conditions here.
"""

from __future__ import annotations

from sqlalchemy import Index, text

from openclaw_rl.store.schema import policies, turns, verdicts

OF_PEOPLE = text("turns.kind != 'practice'")
"""Turns that are not of practice."""
IS_DROPPED = text("turns.state = 'dropped'")
IS_UNFIT = text("turns.untrainable IS NOT NULL")
IS_UNLINKED = text("turns.unlinked IS NOT NULL")
# 7b7d is {}, and 223a22 is between a file's name and its digest.
IS_PRESENT = text("files IS NULL OR files = x'7b7d' OR instr(files, x'223a22') > 0")
"""Versions whose files were not removed; it stands in parentheses beside other conditions."""

_OF_PEOPLE = "kind != 'practice'"
Index("turns_by_session", turns.c.session)
Index("turns_by_state", turns.c.state, sqlite_where=text(_OF_PEOPLE))
Index(
    "turns_dropped",
    turns.c.cause,
    turns.c.reason,
    sqlite_where=text(f"state = 'dropped' AND {_OF_PEOPLE}"),
)
Index(
    "turns_unfit",
    turns.c.untrainable_code,
    turns.c.untrainable,
    sqlite_where=text(f"untrainable IS NOT NULL AND {_OF_PEOPLE}"),
)
Index(
    "turns_unlinked",
    turns.c.unlinked_code,
    turns.c.unlinked,
    sqlite_where=text(f"unlinked IS NOT NULL AND {_OF_PEOPLE}"),
)
Index("verdicts_judge", verdicts.c.judge, verdicts.c.score)
Index("policies_state", policies.c.state)
Index("policies_name", policies.c.name)
Index("policies_parent", policies.c.parent)
Index("policies_present", policies.c.path, sqlite_where=IS_PRESENT)
