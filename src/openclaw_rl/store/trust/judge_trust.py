"""Whether the verdicts of a judge are trained on: by a person's own scores if they are enough, else by those of all.

No one key decides for the others: the common estimate has to hold without any one of the keys, and a person or a key
weighs no more in it than the one in the middle (`score_pairs.common_pairs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    and_,
    delete,
    insert,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from openclaw_rl.common.statistics.rater_agreement import Kappa, cohens_kappa
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.person_scores import Person
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.store.trust import tables
from openclaw_rl.store.trust.people import is_alone
from openclaw_rl.store.trust.score_pairs import (
    ScorePair,
    as_scores,
    common_pairs,
    read_pairs,
)

MIN_PAIRS = 20
"""Pairs of scores by judge and person from which a judge's kappa decides whether it is trusted."""
MIN_PAIRS_EACH = 5
"""Of them, pairs in which the person said +1, and in which -1: one-sided feedback says nothing about a judge."""
_UNTRUSTED_KEY = "untrusted_judges"


@dataclass(frozen=True, slots=True)
class OwnTrust:
    """A decision on a judge by the scores of one person."""

    person: Person
    judge: str
    is_trusted: bool
    kappa: Kappa


@dataclass(frozen=True, slots=True)
class JudgeTrust:
    """Decisions on judges, for training.

    `common`: judges that are not trusted where a person's own scores decide nothing. `own`: by person and judge,
    whether the judge is trusted for the person's turns.
    """

    common: frozenset[str]
    own: Mapping[tuple[Person, str], bool]

    def is_trusted(self, judge: str, person: Person | None) -> bool:
        """Return whether verdicts of a judge on turns of a person are trained on. None: nobody's turns."""
        common = judge not in self.common
        return common if person is None else self.own.get((person, judge), common)

    def people_without(self, judge: str) -> int:
        """Return the number of people whose own scores alone speak against a judge."""
        return sum(
            not trusted
            for (_, name), trusted in self.own.items()
            if name == judge and judge not in self.common
        )

    @property
    def named(self) -> list[str]:
        """Judges that are not trusted, with the number of people if it is for some people only."""
        names = sorted(self.common)
        for judge in sorted({judge for _, judge in self.own} - self.common):
            people = self.people_without(judge)
            if people:
                names.append(f"{judge} for {people} {'person' if people == 1 else 'people'}")
        return names


def training_kappa(pairs: Sequence[tuple[int, int]]) -> Kappa | None:
    """Return the kappa of the verdicts that train: a judge's 0, which trains nothing, counts as abstaining."""
    return cohens_kappa([(judge, user) for judge, user in pairs if judge])


def decisive_kappa(pairs: Sequence[tuple[int, int]]) -> Kappa | None:
    """Return `training_kappa` of pairs that are enough to decide by; None if they are not."""
    user_counts = Counter(user for judge, user in pairs if judge)
    if user_counts.total() < MIN_PAIRS:
        return None
    if min(user_counts[1], user_counts[-1]) < MIN_PAIRS_EACH:
        return None
    return training_kappa(pairs)


def is_below_kappa(pairs: Sequence[tuple[int, int]], min_kappa: float) -> bool:
    """Return whether pairs of scores, by judge and person, are enough and leave a kappa of `min_kappa` possible.

    That is: the lower bound of the 95% interval is not above it.
    """
    kappa = decisive_kappa(pairs)
    return kappa is not None and kappa.low <= min_kappa


def is_below_for_all(pairs: Sequence[ScorePair], min_kappa: float, *, alone: bool) -> bool:
    """Return whether the pairs of people are below `min_kappa`, with and without any one of the keys.

    If all are of one key, any one of its users takes the place of the key. `alone`: whether the only person with pairs
    is the only one there is; otherwise one person decides nothing for all.
    """
    counted = common_pairs(pairs)
    if not is_below_kappa(as_scores(counted), min_kappa):
        return False
    # The key, and the user.
    part = 0 if len({pair.person[0] for pair in counted}) > 1 else 1
    voices = {pair.person[part] for pair in counted}
    if len(voices) == 1:
        return alone
    without_each = ([pair for pair in counted if pair.person[part] != voice] for voice in voices)
    return all(is_below_kappa(as_scores(others), min_kappa) for others in without_each)


def _is_rare(judge: str, pairs: Sequence[ScorePair]) -> bool:
    """Return whether a signal occurred, or was absent, too seldom to be measured; its absence is a score, too."""
    scores = Counter(pair.judge for pair in pairs)
    return is_signal(judge) and min(scores[1], scores[-1]) < MIN_PAIRS_EACH


def own_trust(
    pairs_by_judge: Mapping[str, Sequence[ScorePair]], min_kappa: float
) -> list[OwnTrust]:
    """Return the decision on each judge for which the scores of one person are enough, those of the pairs."""
    decided = []
    for judge, pairs in pairs_by_judge.items():
        kappa = None if _is_rare(judge, pairs) else decisive_kappa(as_scores(pairs))
        if kappa is not None:
            decided.append(OwnTrust(pairs[0].person, judge, kappa.low > min_kappa, kappa))
    return decided


def update_common(
    conn: Connection, min_kappa: float, pairs_by_judge: Mapping[str, Sequence[ScorePair]]
) -> None:
    """Store which judges are not trusted where a person's own scores decide nothing; none with a `min_kappa` of -1."""
    common = set[str]()
    if min_kappa > -1:
        alone = is_alone(conn)
        for judge, pairs in pairs_by_judge.items():
            if not _is_rare(judge, pairs) and is_below_for_all(pairs, min_kappa, alone=alone):
                common.add(judge)
    else:
        conn.execute(delete(tables.judge_trust))
    row = {"key": _UNTRUSTED_KEY, "value": to_json(sorted(common))}
    statement = upsert(t.meta).values(row)
    conn.execute(
        statement.on_conflict_do_update(index_elements=["key"], set_={"value": row["value"]})
    )


def update_own(
    conn: Connection,
    min_kappa: float,
    person: Person,
    pairs_by_judge: Mapping[str, Sequence[ScorePair]],
) -> None:
    """Store which judges are trusted for a person's turns. `pairs_by_judge`: of that person."""
    j = tables.judge_trust.c
    conn.execute(delete(tables.judge_trust).where(j.scope == person[0], j.user == person[1]))
    rows = [
        {
            "scope": person[0],
            "user": person[1],
            "judge": one.judge,
            "is_trusted": int(one.is_trusted),
            "kappa": one.kappa.value,
            "pairs": one.kappa.pairs,
        }
        for one in own_trust(pairs_by_judge, min_kappa)
    ]
    if rows and min_kappa > -1:
        conn.execute(insert(tables.judge_trust), rows)


def read_trust(conn: Connection, people: Collection[Person] | None = None) -> JudgeTrust:
    """Return whose verdicts are trained on, as it was last updated. `people`: own decisions of these people alone."""
    j = tables.judge_trust
    query = select(j.c.scope, j.c.user, j.c.judge, j.c.is_trusted)
    own: dict[tuple[Person, str], bool] = {}
    for condition in _conditions_of(people):
        for scope, user, judge, is_trusted in conn.execute(query.where(*condition)):
            own[(scope, user), judge] = bool(is_trusted)
    return JudgeTrust(_read_common(conn), own)


def _conditions_of(people: Collection[Person] | None) -> list[tuple[ColumnElement[bool], ...]]:
    """Return the conditions of the queries for the own decisions of these people; None: of all."""
    if people is None:
        return [()]
    j = tables.judge_trust.c
    return [(j.scope == scope, j.user == user) for scope, user in people]


def _read_common(conn: Connection) -> frozenset[str]:
    raw = conn.execute(_common).scalar()
    return frozenset() if raw is None else frozenset(from_json(raw))


_common = select(t.meta.c.value).where(t.meta.c.key == _UNTRUSTED_KEY)
_any_refused = (
    select(tables.judge_trust.c.judge)
    .where(tables.judge_trust.c.is_trusted == literal_column("0", Integer))
    .limit(1)
)


def is_trusted_condition(
    conn: Connection,
    judge: ColumnElement[str],
    scope: ColumnElement[str],
    user: ColumnElement[str],
) -> ColumnElement[bool] | None:
    """Return the condition that a verdict of `judge` on a turn of this person is trained on; None: all are."""
    common = _read_common(conn)
    if not common and conn.execute(_any_refused).first() is None:
        return None
    j = tables.judge_trust.c
    decided = select(j.judge).where(j.scope == scope, j.user == user, j.judge == judge)
    distrusted = decided.where(j.is_trusted == 0).exists()
    trusted = decided.where(j.is_trusted == 1).exists()
    return and_(~distrusted, or_(judge.not_in(common), trusted))


def kappa_by_judge(conn: Connection) -> dict[str, Kappa]:
    """Return `kappas_of` the newest scores."""
    pairs_by_judge = read_pairs(conn)
    return kappas_of(
        {judge: as_scores(common_pairs(pairs)) for judge, pairs in pairs_by_judge.items()}
    )


def kappas_of(scores_by_judge: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, Kappa]:
    """Return the common kappa of each judge and signal, without signals that gave all scored turns the same score.

    `scores_by_judge`: by judge and person, of the turns that count in the common estimate.
    """
    kappas = {}
    for judge, scores in scores_by_judge.items():
        kappa = training_kappa(scores)
        if kappa is not None and (not is_signal(judge) or len({score for score, _ in scores}) > 1):
            kappas[judge] = kappa
    return kappas
