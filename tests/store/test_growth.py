"""The benchmark of growth builds homes and measures each of its questions. No bound on a time is asserted here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.growth import measure_homes, write_report
from benchmarks.growth_home import HomeSpec
from benchmarks.growth_rows import ROWS

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import SHARED_NAME, read_heads
from openclaw_rl.types import PolicyState


@pytest.mark.parametrize("policy_count", [1, 1000])
def test_every_question_is_measured(tmp_path: Path, policy_count: int) -> None:
    spec = HomeSpec(turns=1000, policies=policy_count)
    (measured,) = measure_homes(tmp_path, [spec], keep=True, repeats=1)
    assert measured.figures.keys() == {row.name for row in ROWS}
    assert all(figure.ms > 0 and not figure.is_over_limit for figure in measured.figures.values())
    assert all(
        figure.statements for name, figure in measured.figures.items() if name != "waiting names"
    )
    write_report(tmp_path, [measured])
    report = (tmp_path / "growth.md").read_text()
    assert all(f"| {row.name} |" in report for row in ROWS)
    data = json.loads((tmp_path / "growth.json").read_text())
    assert [figure["row"] for figure in data["homes"][0]["figures"].values()] == [
        row.name for row in ROWS
    ]
    with Store.open(tmp_path / spec.folder / "store.db") as store, store.read() as conn:
        states = policies.count_by_state(conn)
        heads = read_heads(conn)
    assert states[PolicyState.REJECTED]
    assert states[PolicyState.LIVE] > len(spec.agents)
    own = {name for name, head in heads.items() if head and name != SHARED_NAME}
    assert own == {spec.policy_of(agent) for agent in spec.agents}
