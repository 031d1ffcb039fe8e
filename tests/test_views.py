"""What `status` tells of the versions."""

from __future__ import annotations

import pytest

from openclaw_rl.types import Policy, PolicyState
from openclaw_rl.views import engine_gaps


def policy(version: int, **metrics: float) -> Policy:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Policy(
        version=version, parent=None, state=PolicyState.LIVE, path=None, digest="", base="b", identity="i",
        metrics=named, created_at=0.0,
    )  # fmt: skip


def test_each_engine_has_its_gap_weighted_by_tokens() -> None:
    known = [
        policy(1, gap__embedded=1e-6, gap__embedded__tokens=100.0, gap=0.2),
        policy(2, gap__embedded=4e-6, gap__embedded__tokens=200.0),
        policy(3, gap__vllm=1e-3, gap__vllm__tokens=50.0),
        policy(4, gap=0.3),
    ]
    gaps = engine_gaps(known)
    assert gaps["embedded"] == {"mean": pytest.approx(3e-6), "tokens": 300.0}
    assert gaps["vllm"] == {"mean": pytest.approx(1e-3), "tokens": 50.0}
    assert set(gaps) == {"embedded", "vllm"}
