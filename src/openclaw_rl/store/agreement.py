"""How often the judge says what users say outright."""

from __future__ import annotations

from sqlalchemy import Connection, select

from openclaw_rl.store.schema import verdicts


def agreement(conn: Connection) -> tuple[int, int]:
    """(turns on which both gave the same score, turns on which both gave one).

    Counted are turns with explicit feedback that a judge had scored; of several verdicts of one side, the one on the
    newest revision of the reaction. Abstaining is no opinion.
    """
    said = select(verdicts.c.turn).where(verdicts.c.explicit != 0, verdicts.c.score.is_not(None))
    rows = conn.execute(
        select(verdicts.c.turn, verdicts.c.explicit, verdicts.c.score)
        .where(verdicts.c.turn.in_(said), verdicts.c.score.is_not(None))
        .order_by(verdicts.c.revision, verdicts.c.at)
    )
    newest: dict[tuple[str, bool], int] = {(turn, bool(explicit)): score for turn, explicit, score in rows}
    both = [
        (score, newest[turn, False])
        for (turn, explicit), score in newest.items()
        if explicit and (turn, False) in newest
    ]
    return sum(user == judge for user, judge in both), len(both)
