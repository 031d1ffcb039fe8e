"""Trust, as `status` shows it: how judges agree with people, and whose evidence is set aside in what is common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.store.trust.evidence import read_set_aside
from openclaw_rl.store.trust.judge_trust import kappas_of, read_trust

# People whom the table names; JSON has all.
_SHOWN_PEOPLE = 50


def trust_data(
    conn: Connection, scores_by_judge: Mapping[str, Sequence[tuple[int, int]]]
) -> dict[str, Any]:
    """Return `judges` and `set_aside` of the status as plain JSON. `scores_by_judge`: see `kappas_of`.

    A judge has the common kappa, whether it is trained on, and the number of people without it. A person has key, user,
    why as a code and in words, and how many of how many turns do not count for others.
    """
    trust = read_trust(conn)
    judges = []
    for judge, kappa in kappas_of(scores_by_judge).items():
        row = {
            "judge": judge,
            "trained_on": judge not in trust.common,
            "people_without": trust.people_without(judge),
        }
        judges.append(row | asdict(kappa))
    set_aside = []
    for one in read_set_aside(conn):
        row = {
            "key": one.person[0],
            "user": one.person[1],
            "code": one.reason.code.value,
            "reason": one.reason.detail,
            "part": one.part,
            "of": one.whole,
        }
        set_aside.append(row)
    return {"judges": judges, "set_aside": set_aside}


def trust_lines(status: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines on judges and on people."""
    for row in status["judges"]:
        judge = row["judge"]
        text = f"kappa {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}) over {row['pairs']} scored turns"
        yield Text.assemble((f"{judge}:", "dim"), " ", text)
        if not row["trained_on"]:
            yield Text(f"verdicts of {judge} are not trained on (judge.min_kappa)", "red")
        elif row["people_without"]:
            people = f"{row['people_without']} of the people, whose scores contradict it"
            yield Text(f"verdicts of {judge} are not trained on for {people}", "yellow")
    yield from _set_aside_lines(status["set_aside"])


def _set_aside_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    for row in rows[:_SHOWN_PEOPLE]:
        user = f", user {row['user']}" if row["user"] else ""
        part = f"{row['part']} of {row['of']} turns do not count for others"
        yield Text(f"set aside: key {row['key']}{user}: {part}: {row['reason']}", "yellow")
    if len(rows) > _SHOWN_PEOPLE:
        more = len(rows) - _SHOWN_PEOPLE
        yield Text(f"set aside: {more} more (`openclaw-rl status --json` names them)", "yellow")
