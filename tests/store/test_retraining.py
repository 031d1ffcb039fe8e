"""The size of what an undo trains on again is that of its batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, insert

from openclaw_rl.store import schema
from openclaw_rl.store.lineage.retraining import UndoneVersions, batches_of_undone, count_work
from openclaw_rl.types import RepeatedBatch

VERSIONS = 6
TURNS = [f"turn-{number}" for number in range(8)]
BATCHES = st.lists(
    st.lists(st.sampled_from(TURNS), unique=True, max_size=4), min_size=VERSIONS, max_size=VERSIONS
)


@given(
    batches=BATCHES,
    safe=st.integers(0, VERSIONS),
    taken_out=st.frozensets(st.sampled_from(TURNS)),
    left=st.lists(
        st.lists(st.sampled_from(TURNS), unique=True, min_size=1, max_size=4), max_size=2
    ),
)
def test_the_size_is_that_of_the_batches(
    batches: list[list[str]], safe: int, taken_out: frozenset[str], left: list[list[str]]
) -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as conn:
        for table in (schema.policies, schema.uses):
            columns = ", ".join(column.name for column in table.columns)
            conn.exec_driver_sql(f"CREATE TABLE {table.name} ({columns})")
        numbers = dict.fromkeys(TURNS, 0)
        conn.execute(insert(schema.policies), [{"version": 0, "parent": None}])
        for version, turns in enumerate(batches, 1):
            conn.execute(insert(schema.policies), [{"version": version, "parent": version - 1}])
            for place, turn in enumerate(turns):
                numbers[turn] += 1
                use = {"policy": version, "turn": turn, "number": numbers[turn], "place": place}
                conn.execute(insert(schema.uses), [use])
        undone = UndoneVersions(
            versions=tuple(range(VERSIONS, safe, -1)),
            safe=safe,
            left=tuple(RepeatedBatch(repeats=99, turns=tuple(turns)) for turns in left),
            taken_out=taken_out,
        )
        repeated = batches_of_undone(conn, undone)
        work = count_work(conn, undone)
    engine.dispose()
    assert list(work.sizes) == [(batch.repeats, len(batch.turns)) for batch in repeated]
    assert work.turns == len({turn for batch in repeated for turn in batch.turns})
